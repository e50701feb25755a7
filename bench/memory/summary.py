"""Table of the memory benchmark."""

from __future__ import annotations

from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from bench.record import read

GIB = 2**30


def write(raw: Path) -> None:
    """Writes `memory.md` beside the raw file: of every run and model, the largest figures of any rank."""
    raw.with_suffix(".md").write_text(table(list(read(raw))))


def table(lines: list[dict[str, Any]]) -> str:
    """Returns the page, as Markdown. With several ranks, it has the largest figure of any."""
    text = [
        "# Time and memory of trainer ranks",
        "",
        (
            "GiB of one rank; of several, each column has the largest figure of any. Weights, gradients and optimizer are float32, "
            "arithmetic is bfloat16, layers are recomputed in the backward pass. Beyond the shards: the most that was held at one time "
            "besides what stays. The largest unit of FSDP2 is a layer or an embedding. Host: private memory of the process; pages of "
            "mapped files are not in it."
        ),
        "",
        (
            "| device | ranks | model | weights | shards | load, s | beyond the shards | host | step, s | bins x tokens "
            "| gradient shards | beyond them | largest allocation | largest unit |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    run: dict[str, Any] = {}
    cases: dict[tuple[int, str], list[dict[str, Any]]] = {}
    runs: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(lines):
        if line["kind"] == "run":
            run, key = line, number
            runs[key] = run
        else:
            cases.setdefault((key, line["size"]), []).append(line)
    for (key, size), ranks in cases.items():
        text.append("| " + " | ".join(_row(runs[key], size, ranks)) + " |")
    versions = ", ".join(f"{name} {value}" for name, value in run.get("versions", {}).items())
    commits = ", ".join(dict.fromkeys(run["settings"].get("commit") or run["commit"] for run in runs.values()))
    text += ["", f"Newest run: {versions}. Commits: {commits}."]
    return "\n".join(text) + "\n"


def _row(run: dict[str, Any], size: str, ranks: list[dict[str, Any]]) -> list[str]:
    settings = run["settings"]

    def most(*path: str) -> float:
        return max(reduce(getitem, path, rank) for rank in ranks)

    load = max(rank["load"]["peak"] - rank["load"]["held"] for rank in ranks)
    row = [
        settings["gpu"] or run["machine"]["processor"],
        str(len(ranks)),
        size,
        _gib(most("weights")),
        _gib(most("shards")),
    ]
    row += [f"{most('load', 'seconds'):.1f}", _gib(load), _gib(most("load", "host"))]
    if "accumulate" not in ranks[0]:
        return [*row, *["-"] * 5, _gib(max(rank["units"][0] for rank in ranks))]
    beyond = max(rank["accumulate"]["peak"] - rank["accumulate"]["held"] for rank in ranks)
    row += [f"{most('step_seconds'):.1f}", f"{settings['bins']} x {settings['tokens']}"]
    row += [_gib(most("accumulate", "held")), _gib(beyond), _gib(most("accumulate", "largest"))]
    return [*row, _gib(max(rank["units"][0] for rank in ranks))]


def _gib(size: float) -> str:
    return f"{size / GIB:.2f}"
