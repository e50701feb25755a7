"""Chooses the reward worker that grades next. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longboat_crds.base import Role
from longboat_runtime.ray_nodes import pool_resource

# Work that waits beside a worker's graders, in seconds of grading: about what it takes to answer and to be asked again
# (at most `worker.GATHER_SECONDS`, each way).
AHEAD_SECONDS = 0.3
# How many requests it has at most, for each grade that runs at once.
MOST_AHEAD = 256
# Weight of a new grade in the mean of a worker's grading times.
_NEWEST = 0.1


@dataclass(slots=True)
class Slots:
    """A worker's node, how many grades may run there `at_once`, how many requests it has, and the seconds that one takes (moving mean)."""

    node: str
    at_once: int
    running: int = 0
    seconds: float | None = None

    @property
    def slots(self) -> int:
        """Most requests that it has at once: what runs, and AHEAD_SECONDS of work, so that no process is idle while an answer travels.

        Not more, since what waits there can't be graded by another worker that becomes free. So few or no grades that take seconds wait,
        and none before it is known what one takes. The mean decides: if few hang and most are quick, an answer's way is short beside it.
        """
        ahead = 0.0 if self.seconds is None else AHEAD_SECONDS / max(self.seconds, 1e-9)
        return min(self.at_once + round(self.at_once * min(ahead, MOST_AHEAD)), self.at_once * MOST_AHEAD)

    def learn(self, seconds: float) -> None:
        """Learns how long a request has taken."""
        self.seconds = seconds if self.seconds is None else (1 - _NEWEST) * self.seconds + _NEWEST * seconds


def resource(pool: str) -> str:
    """Names Ray's resource that the nodes of a reward pool offer: as much of it as grades run there at once at most."""
    return pool_resource(Role.REWARD, pool)


def reward_nodes(nodes: Sequence[Mapping[str, Any]], pools: Iterable[str]) -> dict[str, dict[str, int]]:
    """Returns the grading slots of each pool's living nodes, by pool and node id; `nodes` are those of `ray.nodes()`."""
    return {
        pool: {
            node["NodeID"]: int(node["Resources"][resource(pool)])
            for node in nodes
            if node["Alive"] and node["Resources"].get(resource(pool), 0) >= 1
        }
        for pool in pools
    }


def choose(workers: Collection[Slots], tried: Collection[str]) -> Slots | None:
    """Chooses the worker with the largest free share, on a node not `tried` yet as long as there is one; None if each of those is full.

    A retried grade waits for another worker rather than go back to the one that failed it.
    """
    others = [worker for worker in workers if worker.node not in tried]
    free = [worker for worker in (others or workers) if worker.running < worker.slots]
    return max(free, key=lambda worker: (worker.slots - worker.running) / worker.slots, default=None)
