"""Table of the benchmark of engines' steps."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from bench.record import runs

# A step inside a job may take so much longer than alone.
BAR = 1.5
# Functions shown of each process.
FUNCTIONS = 10


def write(raw: Path) -> None:
    """Writes `engine_step.md` beside the raw file: times of the newest run that wasn't sampled, functions of the newest that was.

    Writes nothing if all runs were sampled.
    """
    plain, sampled = (
        next((run for run in reversed(runs(raw)) if len(run) > 1 and run[0]["settings"]["profile"] is profile), None)
        for profile in (False, True)
    )
    if plain is not None:
        raw.with_suffix(".md").write_text(table(*plain) + (functions(*sampled) if sampled else ""))


def functions(run: dict[str, Any], *arms: dict[str, Any]) -> str:
    """Returns tables, as Markdown, of the functions in which the job's processes were sampled most often."""
    counts: dict[str, Counter[str]] = {}
    for arm in arms:
        for name, counted in arm.get("functions", {}).items():
            counts.setdefault(name, Counter()).update(counted)
    text = ["", f"Sampled by py-spy 50 times a second, which slows everything, at commit {run['commit']}:"]
    for name, counted in sorted(counts.items(), key=lambda item: -item[1].total()):
        text += ["", f"| {name} | samples |", "|---|---|"]
        text += [
            f"| `{function or 'outside Python'}` | {count} |" for function, count in counted.most_common(FUNCTIONS)
        ]
    return "\n".join(text) + "\n"


def table(run: dict[str, Any], *arms: dict[str, Any]) -> str:
    """Returns the page, as Markdown."""
    machine, settings = run["machine"], run["settings"]
    jobs = [arm for arm in arms if arm["arm"] == "job"]
    text = [
        "# What an engine's step takes in a job",
        "",
        (
            f"{machine['processor']}, {machine['cpus']} CPUs, commit {run['commit']}; load at the start {machine['load']:.1f}. The "
            f"quickstart's model and prompts, synchronous rounds of bench/rounds, two engines with one thread each in both arms, "
            f"{settings['turns']} turns of {settings['rounds']} rounds with the same requests. Alone: the two engines and nothing beside "
            f"them. Medians of decode-only steps, in milliseconds; CPU: of the engine's thread; the rest it waited, for a CPU or for "
            f"Python's lock. A step in a job may take {BAR:g} times as long."
        ),
        "",
        "| sequences | steps alone, in a job | alone | CPU | waits | in a job | CPU | waits | wall, of alone |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for size in sorted(jobs[0]["bands"], key=int):
        alone, inside = (_values(arms, arm, size) for arm in ("alone", "job"))
        shown = [f"{1000 * value:.2f}" for side in (alone, inside) for value in _medians(side)]
        ratio = _medians(inside)[0] / _medians(alone)[0]
        text.append(f"| {size} | {len(alone)}, {len(inside)} | {' | '.join(shown)} | {ratio:.2f}x |")
    rounds = sum(len(job["step"]) for job in jobs)
    wall = sum(job["wall"] for job in jobs)
    text += [
        "",
        (
            f"A step of the job takes {median(value for job in jobs for value in job['step']):.2f} s, of which generation "
            f"{median(value for job in jobs for value in job['rollout']):.2f}, training and publication "
            f"{median(value for job in jobs for value in job['update']):.2f}."
        ),
        "",
        "| process | CPU seconds a round | of all CPUs |",
        "|---|---|---|",
    ]
    used = {name: sum(job["cpu"].get(name, 0.0) for job in jobs) for job in jobs for name in job["cpu"]}
    for name, seconds in sorted(used.items(), key=lambda item: -item[1]):
        text.append(f"| {name} | {seconds / rounds:.3f} | {seconds / wall / machine['cpus']:.1%} |")
    return "\n".join(text) + "\n"


def _values(arms: tuple[dict[str, Any], ...], name: str, size: str) -> list[list[float]]:
    return [value for arm in arms if arm["arm"] == name for value in arm["bands"][size]]


def _medians(steps: list[list[float]]) -> tuple[float, float, float]:
    """Computes the medians of wall seconds, of CPU seconds, and of their difference."""
    wall, cpu = (median(column) for column in zip(*steps, strict=True))
    return wall, cpu, median(first - second for first, second in steps)
