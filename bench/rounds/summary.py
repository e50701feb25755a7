"""Tables and plot of the rounds benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.picture import picture
from bench.record import newest_run, read
from bench.rounds.arms import ARMS, BASELINE, BY_SAMPLES
from bench.rounds.compare import Blocks, Measured, accuracy, distribution, longer, measured
from bench.rounds.estimates import Estimate
from bench.rounds.predictions import Predicted, Predictor
from bench.rounds.tasks import TASKS

# A loss of accuracy that must be excluded, as a share: of all prompts, and of those with the longest answers.
LOSS, LOSS_LONGEST = 0.02, 0.03
# Batch sizes at which the table shows the curve.
SHOWN = (1, 2, 4, 8, 16, 32, 64, 96)


def write(raw: Path) -> None:
    """Writes `rounds.md` and `rounds.svg` beside the raw file, from the newest run of each task."""
    parts, panels = [], []
    for name in TASKS:
        run, blocks = last_run(raw, name)
        if run is not None:
            text, panel = report(name, run, blocks)
            parts += text
            panels.append(panel)
    if not panels:
        return
    newest = newest_run(raw)[0]
    versions = ", ".join(f"{package} {value}" for package, value in newest["versions"].items())
    machine = newest["machine"]
    head = [
        "# Round policies",
        "",
        f"{machine['processor']}, {machine['cpus']} CPUs, {machine['memory_gib']} GiB. {versions}.",
        "Two engines of one thread each. Arms take turns, seed by seed, on engines that stay up; all train the same number of samples.",
        "Rollout of BoundedAsync overlaps with training: compare its whole steps.",
        "Intervals are 95 %, over prompts if nothing else is said; `faster` is the synchronous arm's time by the arm's, mean over seeds and their range.",
        "",
    ]
    raw.with_suffix(".md").write_text("\n".join(head + parts))
    plot(panels, raw.with_suffix(".svg"))


def last_run(raw: Path, task: str) -> tuple[dict[str, Any] | None, Blocks]:
    """Finds the newest run with blocks of the task whose seed the baseline has too, and those blocks; (None, {}) if there is none.

    Blocks of arms that ARMS no longer has don't count.
    """
    runs: list[tuple[dict[str, Any], dict[tuple[str, int], dict[str, Any]]]] = []
    for line in read(raw):
        if line["kind"] == "run":
            runs.append((line, {}))
        elif line["kind"] == "block" and line["task"] == task and line["arm"] in ARMS:
            runs[-1][1][line["arm"], line["seed"]] = line
    for run, blocks in reversed(runs):
        paired = {key: block for key, block in blocks.items() if (BASELINE, key[1]) in blocks}
        if paired:
            return run, paired
    return None, {}


Panel = tuple[str, list[tuple[str, Measured, Predicted]], Predictor]


def report(name: str, run: dict[str, Any], blocks: Blocks) -> tuple[list[str], Panel]:
    """Returns the lines of Markdown, and what is plotted."""
    task, settings = TASKS[name], run["settings"]
    predictor = Predictor(blocks, task, settings)
    arms = [arm for arm in ARMS if any(arm == own for own, _ in blocks)]
    rows = [(arm, measured(blocks, arm), predictor.predict(arm)) for arm in arms]
    prompts = settings["prompts"][name]
    lengths = distribution(blocks, prompts)
    seeds = len({seed for _, seed in blocks})
    text = [
        f"## {name}",
        "",
        (
            f"{task.about} {prompts} prompts x {task.group_size} responses a round, {prompts * task.group_size // task.engines} sequences an engine when a "
            f"synchronous round begins; {settings['steps'][name]} steps a block, {seeds} seeds; commit {run['commit']}. Lengths of the synchronous arm: median "
            f"{lengths.median:.0f}, mean {lengths.mean:.0f}, P75 {lengths.p75:.0f} tokens; longest of a round {lengths.longest_by_median:.0f} "
            f"times its median (median over rounds); {lengths.limit_share:.1%} at the longest length."
        ),
        "",
        (
            "| arm | rollout ms a sample | faster | predicted ms | error | whole step ms a sample | faster | predicted ms | "
            "generated : kept | predicted | long rounds | predicted | trained length by synchronous |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for arm, real, predicted in rows:
        cells = [
            arm,
            _ms(real.rollout),
            _range(real.rollout_faster),
            _ms(predicted.rollout),
            f"{predicted.rollout / real.rollout - 1:+.0%}",
            _ms(real.step),
            _range(real.step_faster),
            _ms(predicted.step),
            f"{real.generated_to_kept:.2f}",
            f"{predicted.generated_to_kept:.2f}",
            f"{real.long_share:.2f}",
            f"{predicted.long_share:.2f}",
            real.length.text(),
        ]
        text.append("| " + " | ".join(cells) + " |")
    # Drawn lengths are known beforehand.
    beforehand = {
        arm: (predictor.predict(arm, beforehand=True) if task.learns else predicted).rollout
        for arm, _, predicted in rows
    }
    text += ["", *_by_samples(blocks), *_curve(predictor), ""]
    if task.learns:
        text += [*_errors(rows, beforehand), ""]
        text += [*_accuracies(blocks, [arm for arm in arms if arm != BASELINE]), ""]
    return text, (name, rows, predictor)


def _by_samples(blocks: Blocks) -> list[str]:
    difference = longer(blocks, *BY_SAMPLES)
    if difference is None:
        return []
    return [
        (
            f"With sampleOvercommit 1.25 instead of 1.0 the mean trained length differs by {difference.text('+.3f')} of the synchronous arm's, on "
            f"{difference.count} prompts that all three trained."
        ),
        "",
    ]


def _curve(predictor: Predictor) -> list[str]:
    observed = predictor.observed
    shown = [batch for batch in SHOWN if batch in observed]
    steps = ", ".join(f"{batch}: {1000 * observed[batch].seconds / observed[batch].steps:.1f}" for batch in shown)
    return [
        (
            f"Milliseconds of a step by its number of sequences: {steps}. A synchronous round took {predictor.overhead:+.2f} s beyond the "
            "simulated one; where that is more than 0, all predictions have it as latency."
        ),
    ]


def _errors(rows: list[tuple[str, Measured, Predicted]], beforehand: Mapping[str, float]) -> list[str]:
    errors = {arm: beforehand[arm] / real.rollout - 1 for arm, real, _ in rows}
    listed = ", ".join(f"{arm} {error:+.0%}" for arm, error in errors.items() if arm != BASELINE)
    return [
        (
            "Lengths depend on what an arm has learned: these predictions are on those of its own log. By the synchronous arm's lengths "
            f"alone, rollout would be predicted with errors of {listed}."
        ),
    ]


def _accuracies(blocks: Blocks, arms: list[str]) -> list[str]:
    text = [
        (
            "Share of right held-out answers after the last step less the synchronous arm's, in points, on the same prompts. Intervals are over seeds: "
            "two trainings differ by chance, and more than answers do."
        ),
        "",
        "| arm | answers | all | by seed | loss > 2 | longest decile | of answers | loss > 3 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for arm in arms:
        if not all(block["held_out"] for (name, _), block in blocks.items() if name == arm):
            continue
        result = accuracy(blocks, arm)
        each = ", ".join(f"{100 * difference:+.1f}" for difference in result.by_seed)
        cells = [arm, str(result.answers), _points(result.overall), each, _excluded(result.overall, LOSS)]
        cells += [_points(result.longest), str(result.long_answers), _excluded(result.longest, LOSS_LONGEST)]
        text.append("| " + " | ".join(cells) + " |")
    return text


def _points(estimate: Estimate) -> str:
    return estimate.text("+.1f", lambda share: 100 * share)


def _excluded(estimate: Estimate, loss: float) -> str:
    """Says whether `loss` is excluded, and if not, how many seeds would settle it, if any number would."""
    needed = estimate.needed(loss)
    if estimate.low > -loss:
        return "excluded"
    if needed is None or estimate.high < -loss:
        return "not excluded by any number of seeds at this difference"
    return f"unresolved: needs {needed} seeds instead of {estimate.count}"


def plot(panels: list[Panel], path: Path) -> None:
    """Draws for each task the rollout time of each arm, measured and predicted, and the step-cost curve."""
    with picture(path, rows=2, columns=len(panels), width=5.5, height=3.25) as (_, axes):
        for (name, rows, predictor), bars, curve in zip(panels, *axes, strict=True):
            _bars(bars, name, rows)
            observed = sorted(predictor.observed.items())
            curve.scatter(
                [batch for batch, _ in observed],
                [1000 * times.seconds / times.steps for _, times in observed],
                [2 + times.steps**0.5 for _, times in observed],
                color="#555555",
            )
            curve.set_xlabel("sequences of a step")
            curve.set_ylabel("ms a step")


def _bars(axis: Any, name: str, rows: list[tuple[str, Measured, Predicted]]) -> None:
    places = range(len(rows))
    measured_ms = [1000 * real.rollout for _, real, _ in rows]
    simulated_ms = [1000 * predicted.rollout for *_, predicted in rows]
    axis.bar([place - 0.2 for place in places], measured_ms, 0.4, label="measured", color="#7aa6c2")
    axis.bar([place + 0.2 for place in places], simulated_ms, 0.4, label="simulated", color="#c2785c")
    arms = [arm.replace("TailBatching-", "Tail ") for arm, *_ in rows]
    axis.set_xticks([*places], arms, rotation=30, ha="right", fontsize=8)
    axis.set_title(name)
    axis.set_ylabel("rollout ms a trained sample")
    axis.legend(fontsize=8)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"


def _range(values: Any) -> str:
    return f"{sum(values) / len(values):.2f}x ({min(values):.2f} to {max(values):.2f})"
