"""What a part of a driver adds to the job's status."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from longboat_crds.reasons import Reason
from longboat_crds.status import CheckpointStatus, EnvironmentDemand, Problem, RewardDemand, RolloutDemand

MESSAGE_LENGTH = 4096


@dataclass(frozen=True, slots=True)
class StatusFragment:
    """Fields of the status as they are now: those of `Training` by name, demands, the newest checkpoint, and problems that aren't fatal.

    A field that is None says nothing.
    """

    training: Mapping[str, Any] = field(default_factory=dict)
    rollout: RolloutDemand | None = None
    reward: RewardDemand | None = None
    environment: EnvironmentDemand | None = None
    checkpoint: CheckpointStatus | None = None
    problems: tuple[Problem, ...] = ()


class StatusSource(Protocol):
    """Has a part of the status. It sets the event `news` when that has changed."""

    def status(self) -> StatusFragment:
        """Returns the part as it is now."""


class Problems:
    """Problems of one part of a driver that aren't fatal: the job continues, and each is cleared once its cause is gone.

    `news` is set when they change.
    """

    def __init__(self, news: asyncio.Event) -> None:
        self._news = news
        self._problems: dict[Reason, Problem] = {}

    def put(self, reason: Reason, field: str | None, message: str) -> None:
        """Sets the problem of this reason."""
        problem = Problem(reason=reason, field=field, message=message[:MESSAGE_LENGTH])
        if self._problems.get(reason) != problem:
            self._problems[reason] = problem
            self._news.set()

    def set(self, reason: Reason, field: str | None, message: str, present: bool) -> None:
        """Sets the problem if `present`, else clears it."""
        if present:
            self.put(reason, field, message)
        else:
            self.clear(reason)

    def get(self, reason: Reason) -> Problem | None:
        """Returns the problem of this reason, or None."""
        return self._problems.get(reason)

    def clear(self, reason: Reason) -> None:
        """Removes the problem of this reason."""
        if self._problems.pop(reason, None):
            self._news.set()

    @property
    def present(self) -> tuple[Problem, ...]:
        return tuple(self._problems.values())
