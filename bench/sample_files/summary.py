"""Table of the benchmark of `spec.samples`."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from bench.record import newest_run
from bench.rounds.estimates import ratio

# A step may take this much longer with files.
BAR = 0.02


def write(raw: Path) -> None:
    """Writes `sample_files.md` beside the raw file, from its newest run."""
    raw.with_suffix(".md").write_text(table(*newest_run(raw)))


def table(run: dict[str, Any], *lines: dict[str, Any]) -> str:
    """Returns the page, as Markdown. The same steps are compared: those of a repeat have the same tokens in every setting."""
    machine, settings = run["machine"], run["settings"]
    steps = {(line["case"], line["every"], line["repeat"], line["number"]): line["seconds"]["step"] for line in lines}
    text = [
        "# What files of responses cost a step",
        "",
        (
            f"{machine['processor']}, {machine['cpus']} CPUs, commit {run['commit']}; load at the start {machine['load']:.1f}. "
            f"`longboat run` with and without `spec.samples`, {settings['repeats']} runs of {settings['steps']} steps each, taking "
            "turns on the same prompts and seeds. Seconds with files by seconds without, over all steps, with the 95 % interval over "
            f"steps. It may be {1 + BAR:g}."
        ),
        "",
        "| workload-model-samples | samples.everySteps | median step without | with | ratio |",
        "|---|---|---|---|---|",
    ]
    for case, every in dict.fromkeys((case, every) for case, every, _, _ in steps if every):
        pairs = [
            (seconds, steps[case, None, repeat, number])
            for (own, setting, repeat, number), seconds in steps.items()
            if (own, setting) == (case, every)
        ]
        middle = [f"{median(column):.3f}" for column in ([b for _, b in pairs], [a for a, _ in pairs])]
        text.append(f"| {case} | {every} | {' | '.join(middle)} | {ratio(pairs).text()} |")
    return "\n".join(text) + "\n"
