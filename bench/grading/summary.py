"""Table of the grading benchmark."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from bench.grading.bare import TASKS
from bench.grading.measure import ISOLATIONS, PROCESSES, ROUND
from bench.record import runs

# What a grade may cost above the function, of CPU milliseconds, and how many times a fork and the function.
BAR_MS, BAR_FORKS = 0.8, 1.5
_ORDER = [(task, isolation) for task in TASKS for isolation in ISOLATIONS]


def write(raw: Path) -> None:
    """Writes `grading.md` beside the raw file: of each task and isolation the last run that has it."""
    raw.with_suffix(".md").write_text(table(runs(raw)))


def table(recorded: list[list[dict[str, Any]]]) -> str:
    """Returns the page, as Markdown, from runs that each begin with their `run` line."""
    last = {
        (line["task"], line["isolation"]): lines for lines in recorded for line in lines if line["kind"] == "graded"
    }
    newest = [lines[0] for lines in recorded if lines in last.values()]
    run, machine = newest[-1], newest[-1]["machine"]
    text = [
        "# What a grade costs",
        "",
        (
            f"{machine['processor']}, python {run['versions']['python']}. CPU milliseconds a grade, "
            f"medians over repeats of at least {min(line['settings']['grades'] for line in newest)} grades, {ROUND} in a round. Beyond the function, processes "
            f"that stay may cost {BAR_MS}; PerGrade may cost {BAR_FORKS} times a fork of the zygote, whose child does nothing, and the function. "
            "No grade in a process of its own costs less than a fork into the sandbox and the call in it: `confined` is such a fork of a bare "
            "process, whose child does nothing."
        ),
        "",
        "| task | isolation | in force | graders | reward worker | driver | function alone | beyond it | fork | a bare process' fork and call | confined | of fork and function | different scores | commit |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (task, isolation), lines in sorted(last.items(), key=lambda entry: _ORDER.index(entry[0])):
        mine = [line for line in lines if line.get("task") == task and line.get("isolation") == isolation]
        costs = _medians(mine)
        own = _medians([line for line in lines if line["kind"] == "bare" and line["task"] == task])
        shares = [costs[f"{process}_ms"] for process in PROCESSES]
        total = sum(shares)
        cells = [
            *(*shares, own["function_ms"], total - own["function_ms"]),
            *(costs["zygote_fork_ms"], own["forked_ms"], own["confined_ms"]),
        ]
        shown = " | ".join(f"{cell:.3f}" for cell in cells)
        times = total / (costs["zygote_fork_ms"] + own["function_ms"])
        in_force = ", ".join(sorted({line["in_force"] for line in mine}))
        different = sum(line["different"] for line in mine)
        text.append(
            f"| {task} | {isolation} | {in_force} | {shown} | {times:.2f} x | {different} | {lines[0]['commit']} |"
        )
    return "\n".join(text) + "\n"


def _medians(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Computes the medians over repeats of all values that are floats."""
    return {name: median(line[name] for line in lines) for name, value in lines[0].items() if isinstance(value, float)}
