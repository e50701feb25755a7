"""Table and plot of the stream benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.picture import picture
from bench.record import runs
from bench.rounds import drawn
from bench.rounds.tasks import Task
from bench.stream.tasks import OFF, ON, ONCE, POLICIES, TASKS, WAYS, spec_of
from longboat_runtime.rollout.step_times import merged
from longboat_runtime.rounds.measurements import StepTimes
from longboat_runtime.rounds.policies import open_policy
from longboat_runtime.simulate.curve import StepCurve
from longboat_runtime.simulate.simulation import SimulatedRun, simulate
from longboat_runtime.simulate.site import Site

# Blocks of one task by policy, way and seed.
Blocks = Mapping[tuple[str, str, int], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Row:
    """One policy and way, means over its blocks: seconds of a step, of it after the round, and shares.

    `hidden` is the share of the trainer's seconds in which samples ran, `longer` how much longer engines' steps were than without streaming at
    the same batch sizes. `faster` is the step without streaming by this one, by seed; `simulated` the same as the simulator has it.
    """

    step: float
    train: float
    chunks: float
    share: float
    hidden: float
    longer: float
    faster: Sequence[float]
    simulated: float | None


def write(raw: Path) -> None:
    """Writes `stream.md` and `stream.svg` beside the raw file, from the newest run of each task."""
    newest = {line["task"]: run for run in runs(raw) for line in run[1:]}
    text, rows = [*HEADER], {}
    for name in (name for name in TASKS if name in newest):
        run, *lines = newest[name]
        blocks = {(line["policy"], line["way"], line["seed"]): line for line in lines if line["task"] == name}
        rows[name] = rows_of(TASKS[name], blocks, run["settings"]["steps"][name])
        text += section(TASKS[name], run, rows[name])
    raw.with_suffix(".md").write_text("\n".join(text) + "\n")
    plot(rows, raw.with_suffix(".svg"))


def rows_of(task: Task, blocks: Blocks, steps: int) -> dict[tuple[str, str], Row]:
    """Computes the rows of a task, by policy and way."""
    rows = {}
    for policy in POLICIES:
        for way in WAYS:
            own = {seed: block for (name, other, seed), block in blocks.items() if (name, other) == (policy, way)}
            off = {seed: blocks[policy, OFF, seed] for seed in own if (policy, OFF, seed) in blocks}
            if not off:
                continue
            total = {
                name: sum(sum(block[name]) for block in own.values())
                for name in ("step", "train", "stream", "overlap", "chunks")
            }
            simulated = None if task.learns or way == ONCE else _simulated(task, blocks, policy, steps, [*off])
            count = steps * len(own)
            rows[policy, way] = Row(
                step=total["step"] / count,
                train=total["train"] / count,
                chunks=total["chunks"] / count,
                share=float(np.mean([block["share"] for block in own.values()])),
                hidden=total["overlap"] / (total["stream"] + total["train"]),
                longer=_longer([*own.values()], [*off.values()]),
                faster=[sum(off[seed]["step"]) / sum(own[seed]["step"]) for seed in off],
                simulated=simulated if way == ON else None,
            )
    return rows


def _observed(blocks: Sequence[Mapping[str, Any]]) -> dict[int, StepTimes]:
    return merged({int(batch): StepTimes(*times) for batch, times in block["curve"].items()} for block in blocks)


def _longer(own: Sequence[Mapping[str, Any]], off: Sequence[Mapping[str, Any]]) -> float:
    streamed, not_streamed = _observed(own), _observed(off)
    common = streamed.keys() & not_streamed.keys()
    expected = sum(streamed[batch].steps * not_streamed[batch].seconds / not_streamed[batch].steps for batch in common)
    return sum(streamed[batch].seconds for batch in common) / expected - 1


def _simulated(task: Task, blocks: Blocks, policy: str, steps: int, seeds: Sequence[int]) -> float:
    """Returns the speed of streaming, as the simulator has it on the engines' own step times.

    Times of the trainer are fitted: a step's constant and time of a token to steps without streaming, a chunk's constant to chunks. What a
    round takes beyond the simulated one is that of the rounds without streaming.
    """
    off = [block for (_, way, _), block in blocks.items() if way == OFF]
    on = [block for (_, way, _), block in blocks.items() if way == ON]
    tokens, seconds = (np.concatenate([block[name] for block in off]) for name in ("tokens", "train"))
    update_token, update = np.polyfit(tokens, seconds, 1)
    streamed = sum(np.dot(block["share"], block["tokens"]) for block in on)
    chunk = (sum(sum(block["stream"]) for block in on) - update_token * streamed) / sum(
        sum(block["chunks"]) for block in on
    )
    own = [blocks[policy, OFF, seed] for seed in seeds]
    publish = np.mean(np.concatenate([np.subtract(block["update"], block["train"]) for block in own]))
    site = Site(
        StepCurve.from_observed(_observed(own)),
        engines=task.engines,
        update=max(0.0, update),
        update_token=update_token,
        publish=publish,
        prompt_tokens=drawn.PROMPT_TOKENS,
    )
    measured = np.mean(np.concatenate([block["rollout"] for block in own]))

    def runs(site: Site, way: str) -> list[SimulatedRun]:
        return [
            simulate(
                open_policy(spec_of(task, policy, way, Path("/"), steps=steps, seed=seed)),
                task.group_size,
                site,
                drawn.distribution(seed),
                steps,
            )
            for seed in seeds
        ]

    overhead = measured - np.mean([run.rollout_per_round for run in runs(site, OFF)])
    site = replace(site, latency=max(0.0, overhead) / 2)
    streaming = replace(site, chunk_tokens=task.bin_tokens, chunk=max(0.0, chunk))
    before, after = (
        np.mean([run.seconds_per_sample for run in runs(place, way)]) for place, way in ((site, OFF), (streaming, ON))
    )
    return float(before / after)


HEADER = (
    "# Streaming",
    "",
    "Engines and the trainer's rank have a thread each. Ways take turns, seed by seed, on engines that stay up. `once` streams a single chunk,",
    "when half of a step's prompts are complete. Hidden: share of the trainer's seconds in which samples ran. Faster: the step without streaming",
    "by this one, mean over seeds and their range.",
)


def section(task: Task, run: Mapping[str, Any], rows: Mapping[tuple[str, str], Row]) -> list[str]:
    """Returns the lines of a task's section, as Markdown."""
    machine, settings = run["machine"], run["settings"]
    text = [
        "",
        f"## {task.name}",
        "",
        (
            f"{task.about} Engines: {task.engines}. {task.prompts} prompts x {task.group_size} responses, {settings['steps'][task.name]} steps a "
            f"block. Seeds: {settings['seeds']}. {machine['processor']}, {machine['cpus']} CPUs; commit {run['commit']}."
        ),
        "",
        "| policy | streaming | step, s | of it after the round | chunks | share of tokens | hidden | engines' steps longer | faster | simulated |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (policy, way), row in rows.items():
        faster = f"{np.mean(row.faster):.2f} ({min(row.faster):.2f} to {max(row.faster):.2f})"
        simulated = "" if row.simulated is None else f"{row.simulated:.2f}"
        text.append(
            f"| {policy} | {way} | {row.step:.2f} | {row.train:.2f} | {row.chunks:.1f} | {row.share:.0%} | {row.hidden:.0%} | "
            f"{row.longer:+.1%} | {faster} | {simulated} |"
        )
    return text


def plot(rows: Mapping[str, Mapping[tuple[str, str], Row]], path: Path) -> None:
    """Draws the step of each policy and way: what follows the round above the rest."""
    with picture(path, columns=len(rows), width=5.0, height=3.2) as (_, [panels]):
        for panel, (name, of_task) in zip(panels, rows.items(), strict=True):
            labels = [f"{policy}\n{way}" for policy, way in of_task]
            rest = [row.step - row.train for row in of_task.values()]
            panel.bar(labels, rest, color="#A9BCD0", label="the rest")
            panel.bar(
                labels,
                [row.train for row in of_task.values()],
                bottom=rest,
                color="#0072B2",
                label="trained after the round",
            )
            panel.set_title(name)
            panel.set_ylabel("seconds of a step")
            panel.tick_params(axis="x", labelsize=6)
            panel.legend(fontsize=7)
