"""Writes the table of the newest run of `make bench NAME=episodes`."""

from __future__ import annotations

from pathlib import Path
from statistics import median, quantiles

from bench.record import Line, of_kind, write_page

# The most that a launch may take at the median, one at a time, in milliseconds.
BAR_MS = 50.0


def write(raw: Path) -> None:
    """Writes `episodes.md` beside the raw file. Then ends the program with an error if the bar is missed."""
    write_page(raw, table, missed)


def missed(lines: list[Line]) -> list[str]:
    """Lists how a run misses the bar."""
    return [
        f"a launch takes {1e3 * median(line['seconds']):.0f} ms"
        for line in of_kind(lines, "launches")
        if line["at_once"] == 1 and 1e3 * median(line["seconds"]) > BAR_MS
    ]


def table(lines: list[Line]) -> str:
    """Returns the page, as Markdown."""
    text = [
        "# Launches of episodes",
        "",
        (
            "Time from the request until the environment's code runs, and CPU of all processes of an episode that returns at once. "
            f"The bar: a median of {BAR_MS:.0f} ms, one at a time."
        ),
        "",
        "| at once | median, ms | 95th percentile, ms | CPU, ms |",
        "|---|---|---|---|",
    ]
    for line in of_kind(lines, "launches"):
        last = quantiles(line["seconds"], n=20)[-1]
        numbers = (1e3 * median(line["seconds"]), 1e3 * last, 1e3 * line["cpu_seconds"])
        text.append(f"| {line['at_once']} | " + " | ".join(f"{number:.1f}" for number in numbers) + " |")
    return "\n".join(text) + "\n"
