"""Writes the table of the newest run of `make bench NAME=turns`."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from statistics import fmean, stdev

from bench.record import Line, newest_run, of_kind
from bench.turns.measure import GROUP_SIZE, PROMPT_OVERCOMMIT, PROMPTS, SECONDS, SLOTS, TURNS


def write(raw: Path) -> None:
    """Writes `turns.md` beside the raw file, from its newest run."""
    raw.with_suffix(".md").write_text(table(newest_run(raw)))


def table(lines: list[Line]) -> str:
    """Returns the page, as Markdown."""
    run, simulated = lines[0], of_kind(lines, "simulated")
    text = [
        "# What short rounds save if samples are episodes",
        "",
        (
            f"Simulated: {PROMPTS} prompts x {GROUP_SIZE} samples, {run['settings']['steps']} steps, {run['settings']['seeds']} seeds, "
            f"commit {run['commit']}. Two engines, whose step takes 20 ms with one sequence and 50 ms with 256. The tokens of a turn and "
            "the seconds after it are log-normal, with an effect of the prompt (sigma 0.9) and one of the turn (0.6). A single turn has "
            "medians of 400 tokens and of 1 second away (seldom) or 60 (mostly); each of four turns has a quarter, so that episodes have "
            "the same means. Slots are episodes that may play at once. The table has the seconds of a round in which samples ran; what "
            "TailBatching saves, with its standard error over seeds (both policies play the same episodes); and the tokens that it "
            "generated for each token that was trained."
        ),
        "",
        f"| away | turns | slots | Synchronous | TailBatching {PROMPT_OVERCOMMIT} | saved | generated : kept |",
        "|---|---|---|---|---|---|---|",
    ]
    for away, turns, slots in product(SECONDS, TURNS, SLOTS):
        case = {"away": away, "turns": turns, "slots": slots}
        text.append(_row(case, [line for line in simulated if case.items() <= line.items()]))
    return "\n".join(text) + "\n"


def _row(case: Line, lines: list[Line]) -> str:
    waiting, racing = (
        sorted((line for line in lines if line["policy"] == policy), key=lambda line: line["seed"])
        for policy in ("Synchronous", "TailBatching")
    )
    saved = [
        1 - after["rollout_per_round"] / before["rollout_per_round"]
        for before, after in zip(waiting, racing, strict=True)
    ]
    cells = (
        case["away"],
        str(case["turns"]),
        str(case["slots"] or "unlimited"),
        f"{fmean(line['rollout_per_round'] for line in waiting):.0f} s",
        f"{fmean(line['rollout_per_round'] for line in racing):.0f} s",
        f"{fmean(saved):.0%} ± {stdev(saved) / len(saved) ** 0.5:.0%}",
        f"{fmean(line['generated_to_kept'] for line in racing):.2f}",
    )
    return "| " + " | ".join(cells) + " |"
