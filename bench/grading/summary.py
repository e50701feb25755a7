"""Table of the grading benchmark."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from bench.grading.measure import PROCESSES, ROUND
from bench.record import newest_run

# What a grade may cost above the function, of CPU milliseconds, and how many times a fork and the function.
BAR_MS, BAR_FORKS = 0.8, 1.5


def write(raw: Path) -> None:
    """Writes `grading.md` beside the raw file, from its newest run."""
    run, *lines = newest_run(raw)
    raw.with_suffix(".md").write_text(table(run, lines))


def table(run: dict[str, Any], lines: list[dict[str, Any]]) -> str:
    """Markdown."""
    machine = run["machine"]
    bare = _medians([line for line in lines if line["kind"] == "bare"], ("task",))
    graded = _medians([line for line in lines if line["kind"] == "graded"], ("task", "isolation"))
    text = [
        "# What a grade costs",
        "",
        (
            f"{machine['processor']}, python {run['versions']['python']}, commit {run['commit']}. CPU milliseconds a grade, "
            f"medians of {run['settings']['repeats']} repeats of {run['settings']['grades']} grades, {ROUND} in a round. Beyond the function, processes "
            f"that stay may cost {BAR_MS}; PerGrade may cost {BAR_FORKS} times a fork of the zygote, whose child does nothing, and the function. "
            "No grade in a process of its own costs less than a fork into the sandbox and the call in it: `confined` is such a fork of a bare "
            "process, whose child does nothing."
        ),
        "",
        "| task | isolation | in force | graders | reward worker | driver | function alone | beyond it | fork | a bare process' fork and call | confined | of fork and function | different scores |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (task, isolation), costs in graded.items():
        own = bare[(task,)]
        shares = [costs[f"{process}_ms"] for process in PROCESSES]
        total = sum(shares)
        cells = [
            *(*shares, own["function_ms"], total - own["function_ms"]),
            *(costs["zygote_fork_ms"], own["forked_ms"], own["confined_ms"]),
        ]
        shown = " | ".join(f"{cell:.3f}" for cell in cells)
        times = total / (costs["zygote_fork_ms"] + own["function_ms"])
        mine = [line for line in lines if line.get("task") == task and line.get("isolation") == isolation]
        in_force = ", ".join(sorted({line["in_force"] for line in mine}))
        different = sum(line["different"] for line in mine)
        text.append(f"| {task} | {isolation} | {in_force} | {shown} | {times:.2f} x | {different} |")
    return "\n".join(text) + "\n"


def _medians(lines: list[dict[str, Any]], by: tuple[str, ...]) -> dict[tuple[str, ...], dict[str, float]]:
    grouped: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        grouped[tuple(line[name] for name in by)].append(line)
    return {
        key: {name: median(line[name] for line in of) for name, value in of[0].items() if isinstance(value, float)}
        for key, of in grouped.items()
    }
