"""Tables and plot of the elastic benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from bench.elastic import trace
from bench.elastic.arms import ARMS, FIXED
from bench.elastic.bars import Bar, Result, judge, situations, valid
from bench.elastic.paced import IN_TIME, LATE, Punctuality
from bench.elastic.predictions import predicted
from bench.elastic.published import PREEMPTIONS, SECONDS
from bench.elastic.setup import CHANGE, CHANGE_SECONDS, PACE, ROOFLINE, SEQUENCES, TOKENS
from bench.picture import picture
from bench.record import newest_run
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.simulate.simulation import SimulatedStep

# The simulator may be wrong by so much.
ERROR = 0.10
# The published cells may be missed by so much.
FIT_ERROR = 0.10
COLOURS = {1: "#7aa6c2", 2: "#c2785c", 4: "#7d9c5a"}


def write(raw: Path) -> None:
    """Writes `elastic.md` and `elastic.svg` beside the raw file, from the newest run."""
    lines = newest_run(raw)
    run, blocks = lines[0], [line for line in lines if line["kind"] == "block"]
    phases = tuple((median, cycles) for median, cycles in run["settings"]["phases"])
    result = judge(blocks, trace.Trace(0, phases), CHANGE_SECONDS)
    simulated = simulations(result, valid(blocks), phases)
    text = [
        *_head(run, [line["commit"] for line in lines if line["kind"] == "resumed"], phases),
        *_bars(result, simulated),
        *_arms(result, simulated, valid(blocks)),
        *_situations(result, valid(blocks), phases),
        *_fit([line for line in lines if line["kind"] == "fit"]),
        *_punctuality(blocks),
        *_reasons(valid(blocks)),
    ]
    raw.with_suffix(".md").write_text("\n".join(text) + "\n")
    plot(result, valid(blocks), raw.with_suffix(".svg"))


Simulated = dict[tuple[str, int], list[SimulatedStep]]


def simulations(result: Result, blocks: Any, phases: trace.Phases) -> Simulated:
    """Simulates the blocks, with the latency of messages that explains what rounds of TP1 took beyond the simulator's seconds."""
    first = next(iter(FIXED))
    seeds = sorted(result.seconds.get(first, {}))
    bare = [predicted(ARMS[first], trace.Trace(seed, phases)) for seed in seeds]
    rounds = sum(map(len, bare))
    beyond = sum(result.seconds[first].values()) - sum(step.seconds for steps in bare for step in steps)
    # A round has a message to the engines and one back.
    latency = max(0.0, beyond / rounds / 2) if rounds else 0.0
    return {(arm, seed): predicted(ARMS[arm], trace.Trace(seed, phases), latency) for arm, seed in blocks}


def _head(run: dict[str, Any], resumed: Sequence[str], phases: trace.Phases) -> list[str]:
    machine = run["machine"]
    versions = ", ".join(f"{package} {value}" for package, value in run["versions"].items())
    commits = ", resumed at ".join([run["commit"], *resumed])
    median_lengths = ", ".join(f"{median:g} tokens for {cycles} cycles" for median, cycles in phases)
    kv = ", ".join(f"{ROOFLINE.kv_tokens(size)} with TP{size}" for size in FIXED.values())
    steps = "; ".join(
        f"TP{size}: "
        + ", ".join(f"{1000 * ROOFLINE.step_seconds(size, batch, 64 * batch):.1f}" for batch in (1, 8, 32))
        for size in FIXED.values()
    )
    return [
        "# Tensor parallelism from round to round",
        "",
        f"{machine['processor']}, {machine['cpus']} CPUs, {machine['memory_gib']} GiB. {versions}. Commit {commits}.",
        "",
        (
            "Four devices. Engines are vLLM, each in a process of its own, with the KV blocks of its devices; no model is computed, and tokens are random. Scheduler, blocks and "
            "preemptions are vLLM's own; a step lasts what a roofline says that is fitted to published rounds (below). Policy (TailBatching, "
            f"{trace.PROMPTS} prompts x {trace.GROUP_SIZE} responses, overcommit {trace.PROMPT_OVERCOMMIT:g} x {trace.SAMPLE_OVERCOMMIT:g}), driver, planner and "
            "router are production's; trainer and graders answer at once. A sequence stands for "
            f"{SEQUENCES:g} of the published setup, a token for {TOKENS}, a second for {1 / PACE:.0f}. A change of size takes "
            f"{CHANGE_SECONDS:.2f} s here ({', '.join(f'{phase} {seconds:g} s' for phase, seconds in CHANGE.items())} there). KV tokens: {kv}. Milliseconds of a step with 1, 8 "
            f"and 32 sequences of 64 tokens: {steps}."
        ),
        "",
        (
            f"Median lengths go along a trace, the same for every arm: {median_lengths}; a cycle is {trace.SHORT_ROUNDS} short rounds and a long one. "
            f"Log-normal, prompt sigma {trace.PROMPT_SIGMA:g}, sample sigma {trace.SAMPLE_SIGMA:g}, at most {trace.LONGEST} tokens."
        ),
        "",
    ]


def _bars(result: Result, simulated: Simulated) -> list[str]:
    text = ["| bar | at least | measured (95 % interval over seeds) | |", "|---|---|---|---|"]
    text += [_row(bar) for bar in result.bars]
    for arm, error in _errors(result, simulated).items():
        passed = "passes" if abs(error) <= ERROR else "**misses**"
        text.append(f"| simulator, {arm} | within {ERROR:.0%} | {error:+.1%} | {passed} |")
    note = f"The best fixed size is {result.best}. Ratios are geometric means over seeds, of the seconds of all rounds."
    if result.against_late_oracle is not None:
        note += (
            " The oracle knows the first round of a phase before it has been drawn. Another one keeps the size of the phase before for "
            f"that round, as Adaptive must; Adaptive reaches {result.against_late_oracle.text()} of that oracle's speed."
        )
    return [*text, "", note, ""]


def _row(bar: Bar) -> str:
    return f"| {bar.what} | {bar.least:.2f} | {bar.shown} | {'passes' if bar.passed else '**misses**'} |"


def _errors(result: Result, simulated: Simulated) -> dict[str, float]:
    """Computes the relative errors of the simulated seconds, by arm: all seeds together."""
    errors = {}
    for arm, of_arm in result.seconds.items():
        predicted_seconds = sum(step.seconds for seed in of_arm for step in simulated[arm, seed])
        errors[arm] = predicted_seconds / sum(of_arm.values()) - 1
    return errors


def _arms(result: Result, simulated: Simulated, blocks: Any) -> list[str]:
    errors = _errors(result, simulated)
    text = [
        "| arm | seconds of a block, by seed | simulated | changes, by seed | preemptions, by seed | devices of an engine by round, first seed |",
        "|---|---|---|---|---|---|",
    ]
    for arm in ARMS:
        if arm not in result.seconds:
            continue
        own = {seed: blocks[arm, seed] for seed in sorted(result.seconds[arm])}
        first = next(iter(own.values()))
        cells = [
            arm,
            ", ".join(f"{value:.1f}" for value in result.seconds[arm].values()),
            f"{errors[arm]:+.1%}",
            ", ".join(str(len(block["reshapes"])) for block in own.values()),
            ", ".join(str(sum(block["preemptions"])) for block in own.values()),
            runs_of(first["tp"]),
        ]
        text.append("| " + " | ".join(cells) + " |")
    if result.oracle is not None:
        seconds = ", ".join(f"{each:.1f}" for each in result.oracle.seconds)
        late = ", ".join(f"{each:.1f}" for each in result.oracle.late_seconds)
        text.append(f"| oracle | {seconds} | | {result.oracle.changes} | | |")
        text.append(f"| oracle, one round late in each phase | {late} | | | | |")
    return [*text, ""]


def runs_of(sizes: Sequence[int]) -> str:
    """Formats sizes: `1 x20, 4 x10` for twenty rounds with one device, and then ten with four."""
    return ", ".join(f"{size} x{len([*run])}" for size, run in groupby(sizes))


def _situations(result: Result, blocks: Any, phases: trace.Phases) -> list[str]:
    """Returns the table of a round's mean seconds and preemptions, by phase, kind and fixed size, with the oracle's choice."""
    sizes = [arm for arm in FIXED if arm in result.seconds]
    text = [
        "Seconds (preemptions) of a round in fixed shape, means over rounds and seeds, and the oracle's choice:",
        "",
        f"| phase | kind | {' | '.join(sizes)} | oracle |",
        f"|---|---|{'---|' * len(sizes)}---|",
    ]
    rounds: dict[tuple[int, bool], dict[str, list[tuple[float, int]]]] = {}
    for (arm, seed), block in blocks.items():
        if arm in sizes:
            round_situations = situations(block, trace.Trace(seed, phases))
            for situation, seconds, preemptions in zip(
                round_situations, block["seconds"], block["preemptions"], strict=True
            ):
                rounds.setdefault(situation, {}).setdefault(arm, []).append((seconds, preemptions))
    for situation, by_arm in sorted(rounds.items()):
        phase, long = situation
        means = {
            arm: [sum(column) / len(column) for column in zip(*found_, strict=True)] for arm, found_ in by_arm.items()
        }
        cells = [f"{means[arm][0]:.2f} ({means[arm][1]:.1f})" if arm in means else "" for arm in sizes]
        chosen = f"TP{result.oracle.sizes[situation]}" if result.oracle else ""
        kind = RoundKind.LONG if long else RoundKind.SHORT
        text.append(f"| {phase + 1}: median {phases[phase][0]:g} | {kind} | {' | '.join(cells)} | {chosen} |")
    return [*text, ""]


def _fit(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the table of the published cells; an empty list if the run left them out."""
    if not lines:
        return []
    text = [
        (
            "The roofline against the published cells (RollPacker, arXiv:2509.21009: Qwen3-8B on 8 H800; `bench/elastic/published.py` says what had "
            "to be assumed), rollout seconds of a round; preemptions aren't fitted:"
        ),
        "",
        "| cell | published s | simulated s | error | | published preemptions | simulated |",
        "|---|---|---|---|---|---|---|",
    ]
    for line in lines:
        cell = RoundKind(line["round"]), line["size"]
        error = line["seconds"] / SECONDS[cell] - 1
        passed = "passes" if abs(error) <= FIT_ERROR else "**misses**"
        name = f"{cell[0]} TP{cell[1]}"
        preemptions = f"{PREEMPTIONS[cell]} | {line['preemptions']:.0f}"
        text.append(
            f"| {name} | {SECONDS[cell]:.0f} | {line['seconds']:.0f} | {error:+.1%} | {passed} | {preemptions} |"
        )
    return [*text, ""]


def _punctuality(blocks: Sequence[dict[str, Any]]) -> list[str]:
    found_ = [Punctuality(**block["punctuality"]) for block in blocks]
    void = [f"{block['arm']} seed {block['seed']}" for block in blocks if block["void"]]
    together = sum(found_, Punctuality())
    shares = sorted(each.on_time for each in found_)
    idle = sorted(block["idle"] for block in blocks)
    return [
        (
            f"{together.steps} steps, {together.on_time:.2%} of which ended within {1 + LATE:g} times their stated time; in the worst block {shares[0]:.2%}. "
            f"A block with less than {IN_TIME:.0%} is void: {', '.join(void) or 'none was'}. CPUs were {idle[0]:.0%} to {idle[-1]:.0%} idle."
        ),
        "",
    ]


def _reasons(blocks: Any) -> list[str]:
    """Lists why engines changed in the first seed of each arm, for its first twelve changes."""
    text = []
    for arm in ARMS:
        own = {seed: block for (name, seed), block in blocks.items() if name == arm}
        if own and (reshapes := own[min(own)]["reshapes"]):
            text += [f"Changes of {arm}, seed {min(own)}:", ""]
            text += [
                f"* before round {number + 1}: {reason} ({seconds:.2f} s)"
                for number, _, reason, seconds in reshapes[:12]
            ]
            text += [f"* and {len(reshapes) - 12} more"] if len(reshapes) > 12 else []
            text.append("")
    return text


def plot(result: Result, blocks: Any, path: Path) -> None:
    """Draws the seconds of every round in each arm's first seed, coloured by an engine's devices; long rounds have a dot at the foot."""
    arms = [arm for arm in ARMS if arm in result.seconds]
    with picture(path, rows=len(arms), columns=1, width=11, height=1.3) as (_, axes):
        for arm, (axis,) in zip(arms, axes, strict=True):
            block = blocks[arm, min(result.seconds[arm])]
            places = range(1, len(block["seconds"]) + 1)
            axis.bar(places, block["seconds"], 0.9, color=[COLOURS[size] for size in block["tp"]])
            axis.scatter(
                [p for p, long in zip(places, block["long"], strict=True) if long],
                [0.0] * sum(block["long"]),
                6,
                color="#333333",
            )
            axis.set_title(f"{arm}: {sum(block['seconds']):.1f} s", fontsize=8, loc="left")
            axis.set_ylabel("s a round", fontsize=7)
            axis.set_ylim(0, max(max(blocks[other, min(result.seconds[other])]["seconds"]) for other in arms))
            axis.tick_params(labelsize=7)
        handles = [_patch(colour, f"TP{size}") for size, colour in COLOURS.items()]
        axes[0][0].legend(handles=handles, fontsize=7, ncols=3, loc="upper right")
        axes[-1][0].set_xlabel("round (dots: long ones)", fontsize=8)


def _patch(colour: str, label: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=colour, label=label)
