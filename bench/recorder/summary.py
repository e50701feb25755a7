"""Writes the table of the newest run of `make bench NAME=recorder`."""

from __future__ import annotations

from pathlib import Path

from bench.record import Line, of_kind, write_page

# CPU seconds of a turn on all sides but the engine.
BAR_SECONDS = 0.002


def write(raw: Path) -> None:
    """Writes `recorder.md` beside the raw file."""
    write_page(raw, table, lambda _: [])


def table(lines: list[Line]) -> str:
    """Returns the page, as Markdown."""
    run, played = lines[0], of_kind(lines, "played")
    machine = run["machine"]
    text = [
        "# CPU of a turn at the recorder",
        "",
        (
            f"{machine['processor']}, {machine['cpus']} CPUs, Linux {machine['kernel']}, commit {run['commit']}. "
            f"{run['settings']['episodes']} episodes at once. Each is one conversation with two tools, which grows by a call and its "
            "result each turn. Client, environment and recorder share a process; the engine's replies are made beforehand. The bar: "
            f"{1000 * BAR_SECONDS:g} ms of CPU a turn."
        ),
        "",
        "| template | client | turns | tokens of an episode | segments | CPU a turn, ms | bar |",
        "|---|---|---|---|---|---|---|",
    ]
    for line in played:
        each = line["cpu_seconds"] / line["delivered"]
        met = "met" if each <= BAR_SECONDS else "missed"
        text.append(
            f"| {line['template']} | {line['client']} | {line['turns']} | {line['tokens']} | {line['segments']} | {1000 * each:.2f} | {met} |"
        )
    return "\n".join(text) + "\n"
