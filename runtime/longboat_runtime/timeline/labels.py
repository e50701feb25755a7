"""What is written beside rounds and lanes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from longboat_runtime.timeline.bars import Round
from longboat_runtime.timeline.rows import Lane


def title(job: str, rounds: Sequence[Round]) -> str:
    """The title over these rounds, of which there is at least one."""
    first, last = rounds[0].number, rounds[-1].number
    which = f"round {first}" if first == last else f"rounds {first} to {last}"
    return f"{job}, {which}: a bar is a sample, from its launch to its end"


# Inches that a caption of 8 points and its short form take.
FULL, SHORT = 1.4, 0.45


def caption(round_: Round, inches: float = FULL) -> str:
    """Number and kind, what became of its prompts, what was generated, and how long it took: what fits into the width."""
    if inches < FULL:
        return f"{round_.number}\n{round_.kind}" if inches >= SHORT else ""
    prompts = f"{round_.kept:,} kept" + (f", {round_.deferred:,} deferred" if round_.deferred else "")
    prompts += f", {round_.carried:,} carried" if round_.carried else ""
    prompts += f"\n{round_.dropped:,} dropped" if round_.dropped else ""
    end = "still open" if round_.closed is None else f"closed after {duration(round_.closed - round_.opened)}"
    return f"round {round_.number}: {round_.kind}\n{prompts}\n{round_.tokens:,} tokens\n{end}"


def lane_name(lane: Lane) -> str:
    """The engine's name. What the log can't tell is said, not guessed."""
    return f"engine {lane.engine}" if lane.engine else "not finished\n(engine not recorded)"


def duration(seconds: float) -> str:
    """A duration in the unit that suits it: `4.2 s`, `3 min`, `5.5 h`."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
