"""Derives the faults and their order from the seed alone. Pure."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

T = TypeVar("T")


class Kind(StrEnum):
    """Lists the kinds of fault: those of one job, and those of the cluster that all jobs share."""

    DELETE_POD = "delete pod"
    KILL_PROCESS = "kill process"
    KILL_CONTAINER = "kill container"
    KILL_HEAD = "kill Ray head"
    SUSPEND = "suspend and resume"
    DELETE_OPERATOR = "delete operator pod"
    KILL_OPERATOR = "kill operator process"
    POWER_OFF = "power off node"
    KILL_KUBELET = "kill kubelet"
    FREEZE_API = "freeze API server"
    FREEZE_ETCD = "freeze etcd"
    RESTART_API = "restart API server"


WEIGHTS = {
    Kind.DELETE_POD: 5,
    Kind.KILL_PROCESS: 9,
    Kind.KILL_CONTAINER: 4,
    Kind.KILL_HEAD: 2,
    Kind.SUSPEND: 2,
    Kind.DELETE_OPERATOR: 1,
    Kind.KILL_OPERATOR: 1,
    Kind.POWER_OFF: 1.5,
    Kind.KILL_KUBELET: 1,
    Kind.FREEZE_API: 1,
    Kind.FREEZE_ETCD: 1,
    Kind.RESTART_API: 1,
}
"""How often each comes: what happens to one job often, what takes a cluster down rarely."""

OF_ONE_JOB = frozenset({Kind.DELETE_POD, Kind.KILL_PROCESS, Kind.KILL_CONTAINER, Kind.KILL_HEAD, Kind.SUSPEND})
"""The others happen to every job at once."""

OVERLAPS = 0.3
LONGEST_PAUSE = 4.0
LONGEST_OUTAGE = 20.0


@dataclass(frozen=True)
class Fault:
    """The fault with this number, from 1.

    `job`, `place` and `thing` are in [0, 1): each chooses among what there is when the fault comes (`choose`). An outage lasts
    `outage` seconds, a suspension half of them. A fault that `overlaps` doesn't wait until its job has recovered from the one before.
    `pause` is seconds since the fault before, at least.
    """

    number: int
    kind: Kind
    job: float
    place: float
    thing: float
    forced: bool
    outage: float
    overlaps: bool
    pause: float


def faults(seed: int) -> Iterator[Fault]:
    """Yields the faults of a seed, without end. Every fault takes the same number of draws, whatever it is."""
    rng = random.Random(seed)
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    number = 0
    while True:
        number += 1
        yield Fault(
            number=number,
            kind=rng.choices(kinds, weights)[0],
            job=rng.random(),
            place=rng.random(),
            thing=rng.random(),
            forced=rng.random() < 0.5,
            outage=round(rng.uniform(1, LONGEST_OUTAGE), 1),
            overlaps=rng.random() < OVERLAPS,
            pause=round(rng.uniform(0, LONGEST_PAUSE), 1),
        )


def choose(options: Sequence[T], draw: float) -> T:
    """Chooses the option that a draw from [0, 1) falls on; `options` is not empty."""
    return options[int(draw * len(options))]
