"""Keeps two releases that see the same jobs apart: a job is left to the release that its status names, while that holds its Lease."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable

import structlog

from longboat_operator.kube.client import KubeClient
from longboat_operator.kube.clock import boot_clock
from longboat_operator.kube.errors import KubeError, NotFoundError
from longboat_operator.kube.events import EventRecorder
from longboat_operator.kube.resources import LEASE
from longboat_operator.lease import Seen, may_take, see
from longboat_operator.model import EmitEvent, JobKey, Object

# How often the Lease of another release is read, while there are jobs of that release.
READ_SECONDS = 10.0

log = structlog.get_logger(__name__)


class Releases:
    """Tells which jobs another release serves."""

    def __init__(
        self, client: KubeClient, events: EventRecorder, own: str, clock: Callable[[], float] = boot_clock
    ) -> None:
        """`own` names this release: namespace and name of its Lease, joined by a slash."""
        self.jobs: dict[JobKey, str] = {}
        self._client = client
        self._events = events
        self._own = own
        self._clock = clock
        self._leases: dict[str, tuple[float, Seen | None]] = {}
        self._reading: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def leave(self, key: JobKey, job: Object | None) -> bool:
        """Whether to leave the job alone; says so once in the log and in an Event.

        Rule: another release serves the jobs that name it until its Lease is absent, given up, or not renewed for its whole duration
        since it was first read. One that can't be read counts as held.
        """
        release = ((job or {}).get("status") or {}).get("operator")
        if job is None or release in (None, self._own) or not await self._holds(release):
            self.jobs.pop(key, None)
            return False
        if self.jobs.get(key) != release:
            self.jobs[key] = release
            await self._tell(key, job, release)
        return True

    async def _holds(self, release: str) -> bool:
        """Whether the release holds its Lease, as far as can be known."""
        async with self._reading[release]:
            read, lease = self._leases.get(release, (float("-inf"), None))
            if self._clock() - read >= READ_SECONDS:
                lease = await self._read(release, lease)
                read = self._clock()
                self._leases[release] = read, lease
            return not may_take(lease, self._own, read)  # it may have been renewed since

    async def _read(self, release: str, last_read: Seen | None) -> Seen | None:
        try:
            lease = await self._client.get(LEASE, *release.split("/", 1))
        except NotFoundError:
            return None
        except KubeError as error:
            log.warning("another release's Lease can't be read: it counts as held", release=release, error=str(error))
            return Seen("unknown", float("inf"), ("", "", ""), self._clock())
        return see(last_read, lease, self._clock())

    async def _tell(self, key: JobKey, job: Object, release: str) -> None:
        log.warning("another release serves a job, which is left alone", key=str(key), release=release)
        text = f"Release {release} serves the job (status.operator); release {self._own} leaves it alone."
        try:
            await self._events.record(job, EmitEvent("Warning", "ServedByAnotherRelease", text))
        except KubeError as error:
            log.warning("event not sent", key=str(key), error=str(error))
