"""Table of the benchmark of the trainer's step."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from bench.record import newest_run


def write(raw: Path) -> None:
    """Writes `trainer_step.md` beside the raw file, from its newest run."""
    raw.with_suffix(".md").write_text(table(*newest_run(raw)))


def table(run: dict[str, Any], *lines: dict[str, Any]) -> str:
    """Markdown."""
    machine, settings = run["machine"], run["settings"]
    text = [
        "# One optimizer step on a recorded batch",
        "",
        (
            f"{machine['processor']}, {settings['threads']} threads, commit {run['commit']}; load at the start {machine['load']:.1f}. "
            f"Milliseconds, {settings['steps']} steps of each arm in turns; TRL in micro-batches of {settings['micro_batch']}, Longboat in "
            f"bench/step's bins. The least of all steps is what the work takes where others use the same CPUs. CPU: of all threads, waiting "
            f"for each other included."
        ),
        "",
        "| workload-model-samples | arm | CPU, least | CPU, median | wall, least | wall, median |",
        "|---|---|---|---|---|---|",
    ]
    for case in dict.fromkeys(line["case"] for line in lines):
        for arm in dict.fromkeys(line["arm"] for line in lines):
            of = [line for line in lines if (line["case"], line["arm"]) == (case, arm)]
            values = [choose(line[clock] for line in of) for clock in ("cpu", "wall") for choose in (min, median)]
            text.append(f"| {case} | {arm} | {' | '.join(f'{1000 * value:.0f}' for value in values)} |")
    return "\n".join(text) + "\n"
