"""How many prompts a racing round has. Pure."""

from __future__ import annotations

from fractions import Fraction


def overcommitted(prompts: int, factor: float, ordinal: int) -> int:
    """Prompts of the race number `ordinal`: the whole ones of an even flow, whose fractions are carried on."""
    flow = Fraction(str(factor)) * prompts
    return int(flow * ordinal) - int(flow * (ordinal - 1))
