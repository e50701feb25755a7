"""How many prompts a racing round has. Pure."""

from __future__ import annotations

from fractions import Fraction


def overcommitted(prompts: int, factor: float, ordinal: int, phase: Fraction = Fraction(0)) -> int:
    """Prompts of the race number `ordinal`: the whole ones of an even flow, whose fractions are carried on.

    `phase`, in [0, 1), is what has been carried to the first race. It never takes anything from a later one: after n races the flow
    has brought n x `factor` x `prompts`, rounded down, or one more.
    """
    flow = Fraction(str(factor)) * prompts
    return int(flow * ordinal + phase) - int(flow * (ordinal - 1) + phase)


def phases(count: int) -> list[Fraction]:
    """Phases of so many flows beside each other (quotas of domains) that bring their extra prompts in turn, not all in one race.

    The first is 0, so that it is never ahead: once it has brought a quota of extra prompts, every other flow has too.
    """
    return [Fraction(number, count) for number in range(count)]
