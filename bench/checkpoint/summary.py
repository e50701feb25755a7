"""Table of the checkpoint benchmark."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from bench.record import newest_run

# A checkpoint may hold up training by this share of the time that it takes to be written.
BAR = 0.1


def write(raw: Path) -> None:
    """Writes `checkpoint.md` beside the raw file, from its newest run."""
    raw.with_suffix(".md").write_text(table(*newest_run(raw)))


def table(run: dict[str, Any], *lines: dict[str, Any]) -> str:
    """Returns the page, as Markdown."""
    machine, settings = run["machine"], run["settings"]
    checkpoints = [line for line in lines if line["kind"] == "checkpoint"]
    (steps,) = (line for line in lines if line["kind"] == "steps")
    shares = [line["stall"] / line["write"] for line in checkpoints]
    text = [
        "# How long a checkpoint holds up training",
        "",
        (
            f"{machine['processor']}, {machine['cpus']} CPUs, ranks: {settings['ranks']}, a model of {settings['size']} parameters, torch "
            f"{run['versions']['torch']}, commit {run['commit']}; load at the start {machine['load']:.1f}. The driver's own loop with "
            "its log; rollout and grades take no time, and nothing is published. Seconds. Stall: the time between steps "
            f"while it is written, beyond the {steps['between']:.3f} that lie between two others. It may be {BAR:.0%} of the write, which is all "
            "until the manifest is in place: files written, synced, and read again for their checksums."
        ),
        "",
        "| after step | GB | copy | write | stall | of the write |",
        "|---|---|---|---|---|---|",
    ]
    for line, share in zip(checkpoints, shares, strict=True):
        numbers = [f"{line['bytes'] / 1e9:.2f}", *(f"{line[name]:.2f}" for name in ("copy", "write", "stall"))]
        text.append(f"| {line['step']} | {' | '.join(numbers)} | {share:.1%} |")
    text += [
        "",
        (
            f"Median {median(shares):.1%}, most {max(shares):.1%}. Written before the next step, as long as a checkpoint would have "
            f"held it up: {median(line['copy'] + line['write'] for line in checkpoints):.2f}. A step takes "
            f"{steps['step']:.2f}, beside a write {steps['step_beside_write']:.2f}: they share the CPUs and the memory's bandwidth."
        ),
    ]
    return "\n".join(text) + "\n"
