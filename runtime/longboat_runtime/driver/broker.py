"""The channel between a driver and whatever grants its resources and stores its status."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from longboat_crds.job import RLJobSpec
from longboat_crds.rollout import RolloutSpec
from longboat_crds.status import EnvironmentGrant, RewardGrant, RolloutDemand, RolloutGrant
from longboat_runtime.driver.status import DriverStatus


class Superseded(Exception):
    """Another driver runs this job now, or the job is gone: this driver must stop and write nothing more."""


class Broker(Protocol):
    """The driver's only channel to whatever grants its resources and stores its status."""

    @property
    def editable(self) -> bool:
        """Whether the job's spec can be edited while it runs."""

    @property
    def previous(self) -> DriverStatus:
        """The status that an earlier start left: shown until there is something newer."""

    async def incarnation(self, least: int) -> int:
        """Requests a number of at least `least` for this start, and waits for it."""

    async def suspended(self) -> None:
        """Waits until the job is to be suspended. Raises Superseded."""

    async def drained(self, previous: str | None) -> str:
        """Waits for a drain of driver or trainer pods that didn't begin at `previous`; returns when it began. Raises Superseded."""

    async def edited(self, previous: RLJobSpec) -> RLJobSpec:
        """Waits until the job's spec differs from `previous`, and returns it. Raises Superseded."""

    async def granted(self, previous: RolloutGrant | None) -> RolloutGrant:
        """Waits until there is a grant of rollout pods that differs from `previous`, and returns it. Raises Superseded."""

    async def granted_cpus(self, previous: RewardGrant | None) -> RewardGrant:
        """Waits until there is a grant of reward pools' CPUs that differs from `previous`, and returns it. Raises Superseded."""

    async def granted_environments(self, previous: EnvironmentGrant | None) -> EnvironmentGrant:
        """Waits until there is a grant of environment pods that differs from `previous`, and returns it. Raises Superseded."""

    def publish(self, status: DriverStatus) -> None:
        """Sets the driver's status. Returns at once; it is written when the change is worth a request."""

    async def flush(self) -> None:
        """Waits until the last published status is stored."""

    async def close(self) -> None: ...


class LocalBroker:
    """The broker of a job without Kubernetes: grants what is asked for within the bounds of `rollout`. The spec is never edited.

    Environment pods and CPUs of reward pools are never granted: this machine is all of them, and all pools share its CPUs.

    `suspend` is called on Ctrl-C; `shown` gets every status.
    """

    def __init__(
        self,
        incarnation: int,
        shown: Callable[[DriverStatus], None] = lambda status: None,
        rollout: RolloutSpec | None = None,
    ) -> None:
        self._incarnation, self._shown, self._rollout = incarnation, shown, rollout
        self.editable = False
        self._grant: RolloutGrant | None = None
        self._asked = asyncio.Event()
        self._suspend = asyncio.Event()
        self.previous = self.status = DriverStatus()

    async def incarnation(self, least: int) -> int:
        return self._incarnation

    async def suspended(self) -> None:
        await self._suspend.wait()

    async def drained(self, previous: str | None) -> str:
        await asyncio.Event().wait()
        return ""

    async def edited(self, previous: RLJobSpec) -> RLJobSpec:
        await asyncio.Event().wait()
        return previous

    async def granted(self, previous: RolloutGrant | None) -> RolloutGrant:
        while self._grant is None or self._grant == previous:
            self._asked.clear()
            await self._asked.wait()
        return self._grant

    async def granted_cpus(self, previous: RewardGrant | None) -> RewardGrant:
        await asyncio.Event().wait()
        return RewardGrant()

    async def granted_environments(self, previous: EnvironmentGrant | None) -> EnvironmentGrant:
        await asyncio.Event().wait()
        return EnvironmentGrant()

    def suspend(self) -> None:
        """Has the driver suspend the job."""
        self._suspend.set()

    def publish(self, status: DriverStatus) -> None:
        self.status = status
        if status.demand is not None and status.demand.rollout is not None:
            self._grant = granted(status.demand.rollout, self._rollout)
            self._asked.set()
        self._shown(status)

    async def flush(self) -> None: ...

    async def close(self) -> None: ...


def granted(demand: RolloutDemand, rollout: RolloutSpec | None) -> RolloutGrant:
    """Grants what is asked for, within the bounds of `rollout`, if given (pure)."""
    least, most = (rollout.min_replicas or 0, rollout.replicas) if rollout else (0, demand.replicas)
    return RolloutGrant(answers=demand.number, replicas=min(max(demand.replicas, least), most))
