"""Writes the table of the newest run of trainings, and checks its bar."""

from __future__ import annotations

from pathlib import Path

from bench.episodes_learning.measure import SEEDS
from bench.record import Line, of_kind, write_page

# Rewards are 0 to 1. Of ten seeds, so many trainings have to begin in the lower quarter and end in the upper half.
BEGIN, END, SUCCESSES = 0.25, 0.5, 7


def write(raw: Path) -> None:
    """Writes `episodes_learning.md` beside the raw file. Then ends the program with an error if the bar is missed."""
    write_page(raw, table, missed)


def succeeded(line: Line) -> bool:
    """Whether a training began in the lower quarter and ended in the upper half."""
    first, *_, last = line["held_out"]
    return bool(first <= BEGIN and last >= END)


def missed(lines: list[Line]) -> list[str]:
    """Lists how a run of all ten seeds misses the bar. Other runs have no bar."""
    trainings = of_kind(lines, "training")
    successes = sum(map(succeeded, trainings))
    whole = {line["seed"] for line in trainings} >= {*SEEDS}
    return [f"{successes} of {len(trainings)} seeds learned the game"] if whole and successes < SUCCESSES else []


def table(lines: list[Line]) -> str:
    """Returns the page, as Markdown."""
    text = [
        "# A tool game that a tiny model learns",
        "",
        (
            "Held-out reward (0 to 1) of a game in which three tools lead from place to place to the digit that is the answer. "
            "The model has 0.3 million parameters; `longboat run` trains it by GRPO, with real engines, environments and trainer on CPUs."
        ),
        "",
        "| seed | before | after | learned | s |",
        "|---|---|---|---|---|",
    ]
    for line in of_kind(lines, "training"):
        first, *_, last = line["held_out"]
        learned = "yes" if succeeded(line) else "no"
        text.append(f"| {line['seed']} | {first:.3f} | {last:.3f} | {learned} | {line['seconds']:.0f} |")
    return "\n".join(text) + "\n"
