"""Table and plot of the driver benchmark."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from bench.driver.measure import POLICIES
from bench.picture import picture
from bench.record import newest_run

COLUMNS = {
    "fold_us": "ledger alone, an event",
    "decide_us": "ledger and policy, an event from outside",
    "loop_us": "driver's loop, a trained sample",
}
# What an event may cost the ledger.
BAR_US = 50


def write(raw: Path) -> None:
    """Writes `driver.md` and `driver.svg` beside the raw file, from its newest run."""
    run, *lines = newest_run(raw)
    results = medians(lines)
    raw.with_suffix(".md").write_text(table(run, results))
    plot(results, raw.with_suffix(".svg"))


Medians = dict[tuple[str, int], dict[str, float]]


def medians(lines: list[dict[str, Any]]) -> Medians:
    """Computes medians over repeats, by policy and samples in flight."""
    rows: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        rows[line["policy"], line["in_flight"]].append(line)
    return {key: {name: median(line[name] for line in repeats) for name in COLUMNS} for key, repeats in rows.items()}


def table(run: dict[str, Any], results: Medians) -> str:
    """Returns the page, as Markdown."""
    machine = run["machine"]
    text = [
        "# What the driver costs",
        "",
        (
            f"{machine['processor']}, python {run['versions']['python']}, commit {run['commit']}. CPU microseconds, medians of "
            f"{run['settings']['repeats']} repeats; engines, graders and trainer answer at once. An event may cost the ledger {BAR_US}."
        ),
        "",
        f"| policy | samples in flight | {' | '.join(COLUMNS.values())} |",
        "|---|---|---|---|---|",
    ]
    for (policy, in_flight), values in sorted(
        results.items(), key=lambda item: ([*POLICIES].index(item[0][0]), item[0][1])
    ):
        text.append(f"| {policy} | {in_flight} | {' | '.join(f'{values[name]:.1f}' for name in COLUMNS)} |")
    return "\n".join(text) + "\n"


def plot(results: Medians, path: Path) -> None:
    """Draws a panel for each cost against samples in flight, with a line for each policy."""
    with picture(path, columns=len(COLUMNS), width=4, height=3.4) as (_, panels):
        for axis, (name, title) in zip(panels[0], COLUMNS.items(), strict=True):
            for policy in POLICIES:
                points = sorted(
                    (in_flight, values[name])
                    for (row_policy, in_flight), values in results.items()
                    if row_policy == policy
                )
                if points:
                    axis.plot(*zip(*points, strict=True), marker="o", label=policy)
            axis.set_xscale("log")
            axis.set_ylim(bottom=0)
            axis.set_title(f"{title}, µs", fontsize=9)
            axis.set_xlabel("samples in flight")
        panels[0][0].legend(fontsize=8)
