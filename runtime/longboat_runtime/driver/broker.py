"""The channel between a driver and whatever grants its resources and stores its status."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from longboat_crds.job import RLJobSpec
from longboat_runtime.driver.status import DriverStatus


class Superseded(Exception):
    """Another driver runs this job now, or the job is gone: this driver must stop and write nothing more."""


class Broker(Protocol):
    """The driver's only channel to the outside."""

    @property
    def previous(self) -> DriverStatus:
        """The status that an earlier start left: shown until there is something newer."""

    async def incarnation(self) -> int:
        """Requests the number of this start and waits for it."""

    async def suspended(self) -> None:
        """Waits until the job is to be suspended. Raises Superseded."""

    async def edited(self, known: RLJobSpec) -> RLJobSpec:
        """Waits until the job's spec differs from `known`, and returns it. Raises Superseded."""

    def publish(self, status: DriverStatus) -> None:
        """Sets the driver's status. Returns at once; it is written when the change is worth a request."""

    async def flush(self) -> None:
        """Waits until the last published status is stored."""

    async def close(self) -> None: ...


class LocalBroker:
    """The broker of a job without Kubernetes: grants what the spec says. The spec is never edited while the job runs.

    `suspend` is called on Ctrl-C; `shown` gets every status.
    """

    def __init__(self, incarnation: int, shown: Callable[[DriverStatus], None] = lambda status: None) -> None:
        self._incarnation, self._shown = incarnation, shown
        self._suspend = asyncio.Event()
        self.previous = self.status = DriverStatus()

    async def incarnation(self) -> int:
        return self._incarnation

    async def suspended(self) -> None:
        await self._suspend.wait()

    async def edited(self, known: RLJobSpec) -> RLJobSpec:
        await asyncio.Event().wait()
        return known

    def suspend(self) -> None:
        """Suspends the job at the next step boundary."""
        self._suspend.set()

    def publish(self, status: DriverStatus) -> None:
        self.status = status
        self._shown(status)

    async def flush(self) -> None: ...

    async def close(self) -> None: ...
