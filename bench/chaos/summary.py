"""Table and picture of all recorded runs of `make chaos`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from bench.picture import picture
from bench.record import read

OUTCOMES = ("recovered", "stuck", "failed")

Line = dict[str, Any]


def write(raw: Path) -> None:
    """Writes `chaos.md` and `chaos.svg` beside the raw file."""
    lines = list(read(raw))
    raw.with_suffix(".md").write_text(table(lines))
    plot(lines, raw.with_suffix(".svg"))


def by_kind(lines: Iterable[Line]) -> dict[str, list[Line]]:
    """Groups what faults did by their kind, in alphabetical order: one entry for each job that a fault hit."""
    jobs_by_kind: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        if line["kind"] == "fault":
            jobs_by_kind[line["fault"]] += line["jobs"]
    return dict(sorted(jobs_by_kind.items()))


def by_policy(lines: Iterable[Line]) -> dict[str, dict[str, int]]:
    """Counts, for each policy, the outcomes of faults, one for each job hit, and sums up what the audits of its jobs found."""
    policies: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for line in lines:
        if line["kind"] == "fault":
            for job in line["jobs"]:
                policies[job["policy"]][job["outcome"]] += 1
        elif line["kind"] == "audit":
            row = policies[line["policy"]]
            row["jobs"] += 1
            for name in ("steps", "incarnations", "drawn", "ended"):
                row[name] += line[name]
            for name in ("lost", "doubled", "uncovered", "left"):
                row[name] += len(line[name])
    return {policy: policies[policy] for policy in sorted(policies)}


def table(lines: list[Line]) -> str:
    """Returns the page, as Markdown."""
    runs = [line for line in lines if line["kind"] == "run"]
    faults = sum(line["kind"] == "fault" for line in lines)
    machines = [run["machine"] for run in runs]
    processors = " and ".join(dict.fromkeys(f"{machine['processor']}, {machine['cpus']} CPUs" for machine in machines))
    origins = ", ".join(f"{run['commit']} (seed {run['settings']['seed']})" for run in runs)
    about = (
        f"{faults} faults in {len(runs)} runs; {processors}; commits {origins}. A fault of the "
        "cluster hits every job that runs. A job has recovered when it has made three more steps than when the fault was over."
    )
    text = [
        "# What random faults did",
        "",
        about,
        "",
        "| policy | jobs | steps | incarnations | recovered | stuck | failed | prompts drawn | lost | doubled | left behind |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    columns = ("jobs", "steps", "incarnations", *OUTCOMES, "drawn", "lost", "doubled", "left")
    for policy, row in by_policy(lines).items():
        text.append(f"| {policy} | {' | '.join(str(row.get(name, 0)) for name in columns)} |")
    text += ["", "| fault | jobs hit | not recovered | median s | 90 % s | longest s |", "|---|---|---|---|---|---|"]
    for kind, jobs in by_kind(lines).items():
        seconds = sorted(job["seconds"] for job in jobs if job["outcome"] == "recovered")
        times = [median(seconds), seconds[math.ceil(0.9 * len(seconds)) - 1], seconds[-1]] if seconds else []
        shown = [f"{time:.1f}" for time in times] or ["", "", ""]
        text.append(f"| {kind} | {len(jobs)} | {len(jobs) - len(seconds)} | {' | '.join(shown)} |")
    return "\n".join(text) + "\n"


def plot(lines: list[Line], path: Path) -> None:
    """Draws the seconds to recover: a dot for each job that a fault hit and that recovered, a cross for one that didn't."""
    kinds = by_kind(lines)
    policies = sorted({job["policy"] for jobs in kinds.values() for job in jobs})
    with picture(path, columns=1, width=8, height=0.4 * len(kinds) + 1.2) as (_, panels):
        axis = panels[0][0]
        for number, policy in enumerate(policies):
            points = [
                (job["seconds"], row + 0.15 * (number - (len(policies) - 1) / 2))
                for row, jobs in enumerate(kinds.values())
                for job in jobs
                if job["policy"] == policy and job["outcome"] == "recovered"
            ]
            if points:
                axis.plot(*zip(*points, strict=True), linestyle="", marker=".", label=policy)
        bad = [(1, row) for row, jobs in enumerate(kinds.values()) for job in jobs if job["outcome"] != "recovered"]
        if bad:
            axis.plot(*zip(*bad, strict=True), linestyle="", marker="x", color="black", label="not recovered")
        axis.set_yticks(range(len(kinds)), kinds)
        axis.set_xscale("symlog", linthresh=1)
        axis.set_xlabel("seconds from the fault's end to three more steps")
        axis.legend(fontsize=7)
