"""What is compared: who chooses the size of engines, and by which profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from longboat_crds.rollout import ParallelismMode

DEVICES = 4
SIZES = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class Arm:
    """Describes who chooses the size of engines, which start with `start` devices.

    `wrong` has the factor by which the profile's seconds are wrong, by size. With `swapped`, the profile has the models of one and of two
    devices in each other's place.
    """

    mode: ParallelismMode
    start: int = 1
    wrong: Mapping[int, float] = field(default_factory=dict)
    swapped: bool = False


FIXED = {f"TP{size}": size for size in SIZES}
ADAPTIVE, SWAPPED = "Adaptive", "Adaptive, TP1 and TP2 swapped"
WRONG = ("Adaptive, x1.3, x0.7, x1.3", "Adaptive, x0.7, x1.3, x0.7")

ARMS: dict[str, Arm] = {
    **{name: Arm(ParallelismMode.FIXED, size) for name, size in FIXED.items()},
    ADAPTIVE: Arm(ParallelismMode.ADAPTIVE),
    # Wrong for sizes relative to each other: a profile that is wrong by one factor chooses as the right one does.
    WRONG[0]: Arm(ParallelismMode.ADAPTIVE, wrong={1: 1.3, 2: 0.7, 4: 1.3}),
    WRONG[1]: Arm(ParallelismMode.ADAPTIVE, wrong={1: 0.7, 2: 1.3, 4: 0.7}),
    SWAPPED: Arm(ParallelismMode.ADAPTIVE, swapped=True),
}


def arm_named(name: str) -> str:
    """Raises ValueError for a name that isn't in the table."""
    if name not in ARMS:
        raise ValueError(f"no arm {name}: one of {', '.join(ARMS)}")
    return name
