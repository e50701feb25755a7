"""What lies between a driver and whoever grants it resources."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from longboat_crds.job import RLJobSpec
from longboat_runtime.driver.status import DriverStatus


class Superseded(Exception):
    """Another driver runs this job now, or the job is gone: this one must stop and write nothing more."""


class Broker(Protocol):
    """The driver's only channel outwards."""

    @property
    def previous(self) -> DriverStatus:
        """What an earlier start left: shown until there is something newer."""

    async def incarnation(self) -> int:
        """Asks for the number of this start and waits for it."""

    async def suspended(self) -> None:
        """Returns once the job is to be suspended. Raises Superseded."""

    async def edited(self, known: RLJobSpec) -> RLJobSpec:
        """The job's spec, once it is another one than `known`. Raises Superseded."""

    def publish(self, status: DriverStatus) -> None:
        """The driver's status from now on. Returns at once; it is written when it is worth a request."""

    async def flush(self) -> None:
        """Returns once the last published status is stored."""

    async def close(self) -> None: ...


class LocalBroker:
    """Without Kubernetes: grants what the spec says, which nobody edits while the job runs.

    `suspend` is what a person asks for with Ctrl-C; `shown` gets every status.
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
        """Has the job suspended at the next step boundary."""
        self._suspend.set()

    def publish(self, status: DriverStatus) -> None:
        self.status = status
        self._shown(status)

    async def flush(self) -> None: ...

    async def close(self) -> None: ...
