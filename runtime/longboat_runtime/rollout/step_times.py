"""Measures an engine's steps, by the number of sequences that they give a token. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import log2

from longboat_runtime.rounds.measurements import StepTimes


def rounded(batch: int) -> int:
    """Returns the power of the square root of 2 nearest by logarithm, in whole sequences; that makes 18 numbers from 1 to 512."""
    return round(2 ** (round(2 * log2(batch)) / 2))


def merged(observations: Iterable[Mapping[int, StepTimes]]) -> dict[int, StepTimes]:
    """Adds up observations by batch size."""
    total: dict[int, StepTimes] = {}
    for observed in observations:
        for batch, times in observed.items():
            total[batch] = total[batch] + times if batch in total else times
    return total


class StepClock:
    """Times the steps of one engine. `now` comes from a monotonic clock, in seconds.

    A step lasts from the end of the one before to its own end, so that what lies between two steps counts too. After a
    rest it lasts from `begin`. Steps that compute prompts count like others, unless they give no sequence a token.
    """

    def __init__(self) -> None:
        self._since: float | None = None

    def begin(self, now: float) -> None:
        """Begins to time steps: there is work again, after a rest."""
        self._since = now

    def step(self, now: float, batch: int, *, more: bool) -> dict[int, StepTimes]:
        """Times a step that has ended and gave `batch` sequences a token; `more` if others follow at once.

        Returns it by rounded batch size; an empty mapping if it doesn't count.
        """
        step = {rounded(batch): StepTimes(1, now - self._since)} if self._since is not None and batch else {}
        self._since = now if more else None
        return step

    def interrupt(self) -> None:
        """Leaves out the next step, unless `begin` comes first: what the engine does now isn't a step."""
        self._since = None
