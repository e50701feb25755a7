"""The protocol of all environment pods, as the driver sees them, and what that returns."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from longboat_runtime.rollout.protocol import SampleFleet


@dataclass(frozen=True, slots=True)
class EpisodePod:
    """An environment pod that has joined: whether episodes begin there, and how many are played."""

    pool: str
    serving: bool
    playing: int


@dataclass(frozen=True, slots=True)
class EpisodeState:
    """The environment pods that have joined and are still there, by name, and the released ones in which nothing is played any more.

    `problems` say why pods that are there can't play, by pool.
    """

    pods: Mapping[str, EpisodePod] = field(default_factory=dict)
    drained: tuple[str, ...] = ()
    problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def standing(self) -> tuple[object, ...]:
        """All but how many episodes are played."""
        pods = {name: (pod.pool, pod.serving) for name, pod in self.pods.items()}
        return pods, self.drained, dict(self.problems)


class EpisodePods(SampleFleet, Protocol):
    """Plays samples as episodes, in all environment pods of a job."""

    @property
    def state(self) -> EpisodeState:
        """The pods as they are now."""

    async def changed(self, previous: EpisodeState) -> EpisodeState:
        """Waits until the state differs from `previous` in more than how much is played, and returns it."""

    def release(self, pods: Collection[str]) -> None:
        """Begins no episodes in exactly these pods, until another call no longer names them.

        `EpisodeState.drained` names those in which none is left. A pod that hasn't joined counts as drained.
        """

    async def stacks(self) -> Mapping[str, str]:
        """Returns the stacks of all threads of each actor that answers, by name."""

    async def close(self) -> None: ...
