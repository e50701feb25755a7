"""Leadership by a `coordination.k8s.io/v1` Lease: one process writes, the others keep warm.

The holder renews every `RETRY_SECONDS`. It may write until `write_seconds` after it *sent* its last successful renewal, by a
clock that counts suspension; a request takes at most `request_seconds`, so its last write has ended before a standby, which
waits the full duration from when it *saw* that renewal, takes over. A holder that loses the lease never gets it back: the
process must end.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from longboat_operator.kube.client import KubeClient
from longboat_operator.kube.clock import boot_clock
from longboat_operator.kube.config import ConfigurationError
from longboat_operator.kube.errors import ConflictError, KubeError, NotFoundError
from longboat_operator.kube.resources import LEASE

DURATION_SECONDS = 20.0
RETRY_SECONDS = 2.0
# Clocks of two machines may run at slightly different speeds.
_MARGIN_SECONDS = 1.0

log = structlog.get_logger(__name__)


class LeadershipLostError(Exception):
    """This process may not write any more and must end."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The lease as last read, and when (boot clock) it was first read like this."""

    holder: str
    duration_seconds: float
    renewal: tuple[str, str, str]
    since: float


def may_take(last_read: Seen | None, identity: str, now: float) -> bool:
    """Whether a candidate may write itself into the lease. Pure.

    Yes if there is none, it was given up, it is ours already, or it hasn't changed for its whole duration *by our own clock
    since we saw it* (the times written in it are another machine's and prove nothing).
    """
    return (
        last_read is None or last_read.holder in ("", identity) or now - last_read.since >= last_read.duration_seconds
    )


def see(previous: Seen | None, lease: dict[str, Any], now: float) -> Seen:
    """Takes note of a lease read at `now`; its `since` moves only if someone renewed it. Pure."""
    spec = lease.get("spec") or {}
    holder = spec.get("holderIdentity") or ""
    renewal = (holder, str(spec.get("renewTime")), str(spec.get("leaseTransitions")))
    since = previous.since if previous and previous.renewal == renewal else now
    return Seen(holder, float(spec.get("leaseDurationSeconds") or DURATION_SECONDS), renewal, since)


class Leadership:
    """The right to write, as a check that every write makes but those of the lease."""

    def __init__(self, write_seconds: float, clock: Callable[[], float] = boot_clock) -> None:
        self._write_seconds = write_seconds
        self._clock = clock
        self._renewed: float | None = None
        self._lost = False

    @property
    def may_write(self) -> bool:
        """Whether a write would be let through now."""
        return not self._lost and self._renewed is not None and self.remaining() > 0

    def remaining(self) -> float:
        """Returns the seconds for which the last renewal still allows writes: 0 before the first one, negative once they are over."""
        return 0.0 if self._renewed is None else self._renewed + self._write_seconds - self._clock()

    def renewed(self, sent: float) -> None:
        """Notes that a renewal sent at `sent` has succeeded."""
        self._renewed = sent

    def end(self) -> None:
        """Forbids all writes from now on, for ever."""
        self._lost = True

    def check(self) -> None:
        """Raises LeadershipLostError unless this process may write now."""
        if not self.may_write:
            self._lost = self._lost or self._renewed is not None
            message = "leadership lost: nothing is written" if self._lost else "not the leader: nothing is written"
            raise LeadershipLostError(message)


class Elector:
    """Competes for a lease, keeps it, gives it up."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        request_seconds: float,
        duration_seconds: float = DURATION_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        """`client` must write without asking this leadership; `request_seconds` is its time limit.

        Raises:
            ConfigurationError: the right to write would end before the next renewal, or never.
        """
        write_seconds = duration_seconds - request_seconds - _MARGIN_SECONDS
        if not retry_seconds < write_seconds < math.inf:  # of NaN, no comparison is true
            more = _MARGIN_SECONDS + retry_seconds
            message = (
                f"--lease-duration: must be a finite number of seconds above {request_seconds + more:g}, which is {more:g} more than "
                f"--request-timeout, not {duration_seconds:g}"
            )
            raise ConfigurationError(message)
        self.leadership = Leadership(write_seconds, clock)
        self.identity = identity
        self._client = client
        self._namespace = namespace
        self._name = name
        self._duration_seconds = duration_seconds
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._lease: dict[str, Any] | None = None
        self._seen: Seen | None = None

    async def acquire(self) -> None:
        """Returns once this process leads."""
        while not await self._try_once():  # noqa: ASYNC110
            await asyncio.sleep(self._until_next_try())
        log.info("leading", lease=f"{self._namespace}/{self._name}", identity=self.identity)

    async def keep(self) -> None:
        """Renews until leadership is lost.

        Raises:
            LeadershipLostError: another process holds the lease, or it couldn't be renewed in time.
        """
        while True:
            await asyncio.sleep(self._retry_seconds)
            self.leadership.check()
            if not await self._try_once() and self._seen is not None and self._seen.holder != self.identity:
                self.leadership.end()
            self.leadership.check()

    async def release(self) -> None:
        """Gives the lease up, so that a standby needn't wait; nothing is written by us after this."""
        was_leader = self.leadership.may_write
        self.leadership.end()
        if was_leader:
            try:
                await self._give_up()
            except KubeError as error:
                log.warning("lease not released; it will expire", error=str(error))

    async def _give_up(self) -> None:
        """Clears the lease's holder. Tries once more if a renewal under way was stored first, or the answer was lost."""
        if self._lease is not None:
            with suppress(KubeError):
                await self._write(self._lease, holder="")
                return
        lease = await self._read()
        if lease is not None and (lease.get("spec") or {}).get("holderIdentity") == self.identity:
            await self._write(lease, holder="")

    def _until_next_try(self) -> float:
        """Returns the seconds to the next try: the retry time, or less if the holder's lease expires sooner."""
        if self._seen is None:
            return self._retry_seconds
        remaining = self._seen.since + self._seen.duration_seconds - self._clock()
        return min(self._retry_seconds, max(remaining, 0.1))

    async def _try_once(self) -> bool:
        """Tries once to acquire or renew; returns whether it succeeded."""
        if not self.leadership.may_write or self._lease is None:
            try:
                self._lease = await self._read()
            except KubeError as error:
                log.warning("lease can't be read", error=str(error))
                return False
        if not may_take(self._seen, self.identity, self._clock()):
            return False
        sent = self._clock()
        try:
            self._lease = await self._write(self._lease, holder=self.identity)
        except KubeError as error:
            if not isinstance(error, ConflictError):
                log.warning("lease can't be written", error=str(error))
            self._lease = None  # read it again: someone else wrote, or our write's answer got lost
            return False
        self._seen = see(self._seen, self._lease, self._clock())
        self.leadership.renewed(sent)
        return True

    async def _read(self) -> dict[str, Any] | None:
        try:
            lease = await self._client.get(LEASE, self._namespace, self._name)
        except NotFoundError:
            self._seen = None
            return None
        self._seen = see(self._seen, lease, self._clock())
        return lease

    async def _write(self, lease: dict[str, Any] | None, holder: str) -> dict[str, Any]:
        """Creates the lease, or replaces exactly the one that was read."""
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        spec = dict((lease or {}).get("spec") or {})
        if spec.get("holderIdentity") != holder:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + (1 if lease else 0)
        spec |= {
            "holderIdentity": holder,
            "renewTime": now,
            "leaseDurationSeconds": math.ceil(self._duration_seconds) if holder else 1,
        }
        if lease is None:
            metadata = {"namespace": self._namespace, "name": self._name}
            return await self._client.create(
                LEASE, {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": spec}
            )
        return await self._client.replace(LEASE, {**lease, "spec": spec})
