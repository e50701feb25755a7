"""Detects that another process publishes the status of the same jobs. No I/O.

Two operators that know different things, such as which requests were refused, would otherwise overwrite each other's status without end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from longboat_crds.status import OPERATOR_FIELDS
from longboat_operator.model import Key, Object, digest
from longboat_operator.pace import Pace
from longboat_operator.watch.cache import version_of

log = structlog.get_logger(__name__)


class Overwrites:
    """Makes a job wait each time another process has published over this one's status: ever longer, up to a minute."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # What each job's plan published last: the job's uid and version, and a digest of the plan's part of the status.
        self._published: dict[Key, tuple[str, int, str]] = {}
        self._paces: dict[Key, Pace] = {}

    def published(self, key: Key, job: Object | None) -> None:
        """Notes the job as the server returned it when its status was published; None if nobody knows what was stored."""
        if job is None:
            self._published.pop(key, None)
        else:
            self._published[key] = job["metadata"]["uid"], version_of(job), _digest(job)

    def wait(self, key: Key, job: Object) -> float:
        """Returns the seconds for which the job has to wait. Notes it if `job` shows that its status was overwritten."""
        uid, version, digested = self._published.get(key, ("", 0, ""))
        if job["metadata"]["uid"] == uid and version_of(job) > version and _digest(job) != digested:
            log.warning("another process publishes this job's status: let one release alone serve it", key=str(key))
            self.published(key, job)
            self._paces.setdefault(key, Pace(self._clock)).note()
        return self._paces[key].wait if key in self._paces else 0.0

    def forget(self, key: Key) -> None:
        """Forgets a job that is gone."""
        self._published.pop(key, None)
        self._paces.pop(key, None)


def _digest(job: Object) -> str:
    """Digests the part of the status that the job's plan owns; its capacity's plan owns the grant."""
    part: dict[str, Any] = {name: value for name, value in job.get("status", {}).items() if name in OPERATOR_FIELDS}
    allocation = {name: value for name, value in part.pop("allocation", {}).items() if name != "grant"}
    return digest({**part, "allocation": allocation})
