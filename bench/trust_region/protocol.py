"""What is trained, in which order, and when a training has collapsed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bench.rounds.tasks import QUICKSTART_RATE
from longboat_crds.rounds import MAX_STALENESS

SEARCH_SEEDS = range(12)
SELECTION_SEEDS = SEARCH_SEEDS[:6]
CONFIRMATION_SEEDS = range(100, 112)

STEPS = 30
PROMPTS = 16

WINDOW = 5
LOSS = 0.1
COLLAPSES_NEEDED = 6


class Setting(NamedTuple):
    """What a loss has to stand."""

    rate: float
    staleness: int


# Mildest first.
SETTINGS = (
    Setting(QUICKSTART_RATE, 2),
    Setting(QUICKSTART_RATE, 4),
    Setting(1.5 * QUICKSTART_RATE, 2),
    Setting(2 * QUICKSTART_RATE, 2),
    Setting(2 * QUICKSTART_RATE, 4),
)
USUAL = Setting(QUICKSTART_RATE, MAX_STALENESS)

# Sections of a spec. `before` is the loss that policies with older weights had; `default` the one they have now.
BEFORE, DEFAULT, SYNCHRONOUS = "before", "default", "Synchronous"
CANDIDATES: dict[str, dict[str, dict[str, Any]]] = {
    "Behaviour": {"algorithm": {"clipAgainst": "Behaviour"}},
    "Behaviour, dual clip 3": {"algorithm": {"clipAgainst": "Behaviour", "dualClip": 3.0}},
    "Behaviour, dual clip 3, masked, 0.5 to 2": {
        "algorithm": {"clipAgainst": "Behaviour", "dualClip": 3.0, "importanceMask": {"low": 0.5, "high": 2.0}}
    },
    "masked, 0.5 to 2": {"algorithm": {"importanceMask": {"low": 0.5, "high": 2.0}}},
    "Proximal, 2 minibatches": {"trainer": {"minibatches": 2}},
}
ARMS: dict[str, dict[str, dict[str, Any]]] = {
    BEFORE: {},
    **CANDIDATES,
    DEFAULT: {"rounds": {"policy": "BoundedAsync"}},
    SYNCHRONOUS: {},
}


class Training(NamedTuple):
    """One arm on one seed."""

    phase: str
    arm: str
    setting: Setting
    seed: int


def collapsed(rewards: Sequence[float], untrained: float) -> bool:
    """Whether `rewards` of all steps so far show a collapse: WINDOW consecutive ones whose mean is more than LOSS below `untrained`."""
    return any(
        sum(rewards[first : first + WINDOW]) / WINDOW < untrained - LOSS for first in range(len(rewards) - WINDOW + 1)
    )


def search_ended(outcomes: Sequence[bool]) -> bool | None:
    """Judges a setting by which of its trainings so far have collapsed: True, enough did; False, too few still can; None, continue."""
    if sum(outcomes) >= COLLAPSES_NEEDED:
        return True
    remaining = len(SEARCH_SEEDS) - len(outcomes)
    return False if sum(outcomes) + remaining < COLLAPSES_NEEDED else None


def best(collapses: Mapping[str, int], right: Mapping[str, float]) -> str:
    """Chooses the candidate with the fewest collapses; among equals, the one with the most correct answers."""
    return min(collapses, key=lambda arm: (collapses[arm], -right[arm]))
