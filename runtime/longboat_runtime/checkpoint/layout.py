"""Names the directories of checkpoints, `incarnations/3/step-00000010/`, and of exports. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath
from typing import NamedTuple

INCARNATIONS = "incarnations"
_STEP = re.compile(r"step-(\d+)")


class Position(NamedTuple):
    """Names one checkpoint. Orders by age: a later incarnation is newer, whatever its step."""

    incarnation: int
    step: int

    @property
    def path(self) -> PurePath:
        """Relative to the root of all checkpoints."""
        return PurePath(INCARNATIONS) / str(self.incarnation) / step_name(self.step)


def step_name(step: int) -> str:
    """Names the directory of a step."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """Returns the step whose directory has this name; None if it is something else's."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def parse(incarnation: str, step: str) -> Position | None:
    """Returns the position that two directory names stand for; None if they are something else's."""
    number = step_of(step)
    return Position(int(incarnation), number) if number is not None and incarnation.isdecimal() else None


def removable(
    every: Iterable[Position], usable: Iterable[Position], keep: int, saved: Position, newest: int
) -> list[Position]:
    """Returns what may be removed once `saved` is complete: all but `saved` and the `keep` newest that are `usable`.

    The others, unfinished or damaged, don't count for `keep`. Nothing may be removed if a later incarnation than that of `saved` exists
    (`newest` is the highest): it may resume from any checkpoint, and removes its own unfinished ones.
    """
    if newest > saved.incarnation:
        return []
    return sorted(set(every) - {saved, *sorted(usable)[-keep:]})


def surplus_exports(steps: Iterable[int], keep: int, written: int) -> list[int]:
    """Returns the steps whose exports may be removed once that of the step `written` is whole: all up to it but for the `keep` newest.

    Later ones were made before the job went back to an earlier step. They stay until it comes to their steps again.
    """
    return sorted(step for step in steps if step <= written)[:-keep]
