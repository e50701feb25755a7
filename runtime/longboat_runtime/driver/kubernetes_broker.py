"""The broker of a job on Kubernetes: it reads and writes nothing but its own RLJob."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from http import HTTPStatus
from typing import Any, TypeVar

import structlog
from pydantic import ValidationError

from longboat_crds.incarnations import incarnation_request
from longboat_crds.job import RLJobSpec
from longboat_crds.status import FAILURE_LENGTH, Demand, EnvironmentGrant, RewardGrant, RolloutGrant
from longboat_crds.tolerance import read_known
from longboat_runtime.driver.broker import Superseded
from longboat_runtime.driver.own_job import NoAnswer, OwnJob, Rejected
from longboat_runtime.driver.status import DriverStatus, asks_anew, due

log = structlog.get_logger()

Granted = TypeVar("Granted", RolloutGrant, RewardGrant, EnvironmentGrant)

# The longest waits between tries of a request that fails, in seconds: doubling from the first to the second.
BACKOFF = (0.5, 30.0)
# Between two watches, in seconds, if the server ends them at once.
_WATCH_PAUSE = 0.2


class KubernetesBroker:
    """Follows the job and maintains its status. Waits out outages of the API server: training doesn't need it.

    Call `start` first. `clock` is monotonic, in seconds. `after_failure` says how the previous start failed, unless its container
    ended too: the operator counts that failure with the request for a number.

    `request_stored` is set once the API server has stored a request for a number. `last_error` says how the last request failed, None if it
    didn't.
    """

    def __init__(self, own: OwnJob, clock: Callable[[], float], after_failure: str | None = None) -> None:
        self._own, self._clock, self.editable = own, clock, True
        self._failure = after_failure and after_failure[:FAILURE_LENGTH]
        self.request_stored = asyncio.Event()
        self.last_error: str | None = None
        self._demand = Demand()
        self._job: dict[str, Any] = {}
        self._before: dict[str, Any] = {}
        self._number: int | None = None
        self._superseded: str | None = None
        self._signal = asyncio.Event()
        self._wanted: DriverStatus | None = None
        self._stored: DriverStatus | None = None
        self._stored_at = 0.0
        self._asked_at = float("-inf")
        self._flushing = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> dict[str, Any]:
        """Returns the job and follows it from now on. Waits until the API server answers. Raises Superseded if the job is gone."""
        self._job = await self._persist(self._own.get)
        self._before = self._job.get("status", {})
        self._run(self._follow())
        return self._job

    @property
    def previous(self) -> DriverStatus:
        return DriverStatus.from_json(self._before)

    async def incarnation(self, least: int) -> int:
        """See `Broker.incarnation`. An earlier start's progress and checkpoint stay as they are until then: lower numbers are rejected."""
        self._number = await self._requested(least)
        self._run(self._write())
        return self._number

    async def suspended(self) -> None:
        await self._until(lambda: bool(self._job["spec"].get("suspend")))

    async def drained(self, previous: str | None) -> str:
        def since() -> str | None:
            drain = self._job.get("status", {}).get("drain", {})
            return drain.get("since") if drain.get("since") != previous else None

        await self._until(lambda: since() is not None)
        return since() or ""

    async def edited(self, previous: RLJobSpec) -> RLJobSpec:
        read: dict[str, Any] = {}

        def another() -> bool:
            return bool(self._job["spec"] != read)

        spec = previous
        while spec == previous:
            await self._until(another)
            read = self._job["spec"]
            spec = _read(read, previous)
        return spec

    async def granted(self, previous: RolloutGrant | None) -> RolloutGrant:
        return await self._another_grant("rollout", RolloutGrant, previous)

    async def granted_cpus(self, previous: RewardGrant | None) -> RewardGrant:
        return await self._another_grant("reward", RewardGrant, previous)

    async def granted_environments(self, previous: EnvironmentGrant | None) -> EnvironmentGrant:
        return await self._another_grant("environment", EnvironmentGrant, previous)

    async def _another_grant(self, kind: str, model: type[Granted], previous: Granted | None) -> Granted:
        while (grant := _grant_in(self._job, kind, model)) is None or grant == previous:
            await self._another_job()
        return grant

    def publish(self, status: DriverStatus) -> None:
        wanted = status.demand or Demand()
        parts = {"rollout": wanted.rollout, "reward": wanted.reward, "environment": wanted.environment}
        demand = self._demand.model_copy(update=parts)
        self._wanted = DriverStatus(status.training, demand, status.checkpoint, status.problem)
        self._notify()

    async def flush(self) -> None:
        """See `Broker.flush`. Raises Superseded if the status no longer counts."""
        self._flushing = True
        self._notify()
        await self._until(lambda: self._stored is self._wanted)
        self._flushing = False

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._own.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        async def unless_superseded() -> None:
            try:
                await work
            except Superseded as error:
                self._superseded = str(error)
                self._notify()

        self._tasks.append(asyncio.create_task(unless_superseded()))

    def _notify(self) -> None:
        """Wakes everything that waits for a change."""
        self._signal.set()
        self._signal = asyncio.Event()

    async def _until(self, true: Callable[[], bool]) -> None:
        while not true():
            if self._superseded:
                raise Superseded(self._superseded)
            await self._signal.wait()

    async def _another_job(self) -> None:
        """Waits for another state of the job."""
        job = self._job
        await self._until(lambda: self._job is not job)

    async def _requested(self, least: int) -> int:
        """Asks until a number of at least `least` is granted: an operator up to 0.2.0 answers each request with the next number."""
        while True:
            request = incarnation_request(secrets.token_hex(16), least)
            # The operator counts the previous start's failure with every request that reports it.
            self._demand, self._failure = Demand(incarnation_request=request, previous_failure=self._failure), None
            await self._persist(self._ask)
            self.request_stored.set()
            await self._until(lambda: self._granted() is not None)
            if (number := self._granted()) is not None and number >= least:
                return number

    def _granted(self) -> int | None:
        """Returns our number once the operator has answered our request, else None."""
        incarnation = self._job.get("status", {}).get("allocation", {}).get("incarnation", {})
        return incarnation.get("number") if incarnation.get("request") == self._demand.incarnation_request else None

    def _take(self, job: dict[str, Any]) -> None:
        """Takes a newer state of the job. Raises Superseded if the job is no longer ours."""
        if job["metadata"]["uid"] != self._job["metadata"]["uid"]:
            raise Superseded("the job was deleted, and another one has its name")
        number = _number_in(job)
        if self._number is not None and number > self._number:
            raise Superseded(f"driver start {number} counts, not this start ({self._number})")
        self._job = job
        self._notify()

    async def _persist(self, request: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Repeats the request until it succeeds. Raises Superseded if the job is gone."""
        wait = BACKOFF[0]
        while True:
            try:
                answer = await request()
            except (NoAnswer, Rejected) as error:
                if isinstance(error, Rejected) and error.code == HTTPStatus.NOT_FOUND:
                    raise Superseded("the job was deleted") from error
                self.last_error = str(error)
                log.warning("the API server doesn't serve", error=self.last_error, again_in=wait)
            else:
                self.last_error = None
                return answer
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(2 * wait, BACKOFF[1])

    async def _follow(self) -> None:
        """Watches the job; reads it again after an outage or a compaction.

        The next watch then begins with the job as it is: the version of one that hasn't changed for long may be too old for any watch.
        """
        resumes = True
        while True:
            try:
                async for kind, job in self._own.watch(self._job["metadata"]["resourceVersion"] if resumes else None):
                    resumes = True
                    match kind:
                        case "DELETED":
                            raise Superseded("the job was deleted")
                        case "BOOKMARK":
                            self._job["metadata"]["resourceVersion"] = job["metadata"]["resourceVersion"]
                        case _:
                            self._take(job)
            except (NoAnswer, Rejected) as error:
                log.warning("the watch of the job ended", error=str(error))
                job = await self._persist(self._own.get)
                if self._stored and not self._stored.is_in(job.get("status", {})):
                    self._stored = None  # the API server was restored to an earlier time
                self._take(job)
                resumes = False
            await asyncio.sleep(_WATCH_PAUSE)

    async def _write(self) -> None:
        """Stores the wanted status whenever a write is due; after an outage, the newest."""
        while True:
            wait = self._due()
            if wait is None or wait > 0:
                await self._changed_within(wait)
                continue
            before = self._stored
            await self._persist(self._apply_newest)
            self._stored_at = self._clock()
            if self._stored is not None and asks_anew(before, self._stored):
                self._asked_at = self._stored_at
            self._notify()

    async def _ask(self) -> dict[str, Any]:
        """Requests a number; keeps progress and checkpoint as the watch last showed them: another start may have written meanwhile."""
        self._before = self._job.get("status", {})
        status = {name: part for name, part in self._before.items() if name in ("training", "checkpoint")}
        return await self._apply({**status, "demand": self._demand.to_json()})

    async def _apply_newest(self) -> dict[str, Any]:
        """Stores the wanted status. An API server that was restored to a time before this start has to grant its number again first."""
        assert self._wanted is not None
        assert self._number is not None
        if _number_in(self._job) < self._number:
            await self._requested(self._number)
            self.publish(self._wanted)
        wanted = self._wanted
        job = await self._apply(wanted.to_json())
        self._stored = wanted
        return job

    async def _apply(self, status: dict[str, Any]) -> dict[str, Any]:
        """Writes the status. If that is forbidden, another driver may count or have written since, so the job is read again."""
        try:
            return await self._own.apply_status(status)
        except Rejected as error:
            if error.code == HTTPStatus.FORBIDDEN:
                self._take(await self._own.get())
            raise

    def _due(self) -> float | None:
        if self._wanted is None or self._stored is self._wanted:
            return None
        now = self._clock()
        return 0.0 if self._flushing else due(self._stored, self._wanted, now - self._stored_at, now - self._asked_at)

    async def _changed_within(self, seconds: float | None) -> None:
        try:
            await asyncio.wait_for(self._signal.wait(), seconds)
        except TimeoutError:
            return


def _read(spec: dict[str, Any], previous: RLJobSpec) -> RLJobSpec:
    """Parses the spec; returns `previous` if this version can't read it: the job then continues unchanged."""
    try:
        return RLJobSpec.model_validate(spec)
    except ValidationError as error:
        log.warning("the edited spec can't be read, so the job ignores the edit", error=str(error))
        return previous


def _number_in(job: dict[str, Any]) -> int:
    """Returns the number of the driver start that counts; 0 before the first."""
    number: int = job.get("status", {}).get("allocation", {}).get("incarnation", {}).get("number", 0)
    return number


def _grant_in(job: dict[str, Any], kind: str, model: type[Granted]) -> Granted | None:
    """Reads what of this kind is granted in the job's status; None if there is no grant that this version understands."""
    grant = job.get("status", {}).get("allocation", {}).get("grant", {}).get(kind)
    try:
        return None if grant is None else read_known(model, grant)
    except ValidationError as error:
        log.warning("a grant can't be read, so it is ignored", kind=kind, error=str(error))
        return None
