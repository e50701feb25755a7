"""A job isn't planned again until the cache shows what its last writes did: nothing is created twice from a stale view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longboat_operator.model import JobKey
from longboat_operator.watch.cache import Cache, ObjectKey


@dataclass(frozen=True, slots=True)
class Expectation:
    """The cache is to show the object as of `version`, or newer.

    With `deleted_uid` it is to show that the object of this uid is going: marked for deletion as of `version`, or absent.
    The answer to a DELETE tells neither which of the two comes nor the version of the deletion.
    """

    key: ObjectKey
    version: int
    deleted_uid: str | None = None


class Expectations:
    """What each job still waits for."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._open: dict[JobKey, list[Expectation]] = {}

    def expect(self, job: JobKey, expectations: Sequence[Expectation]) -> None:
        """Adds what a job's writes returned."""
        if expectations:
            self._open.setdefault(job, []).extend(expectations)

    def met(self, job: JobKey) -> bool:
        """Whether the cache has caught up with the job's writes; those it has are dropped."""
        if job not in self._open:
            return True
        self._open[job] = [expected for expected in self._open[job] if not self._shown(expected)]
        if not self._open[job]:
            del self._open[job]
        return job not in self._open

    def waiting(self) -> list[JobKey]:
        """Jobs that wait."""
        return list(self._open)

    def _shown(self, expected: Expectation) -> bool:
        reached = self._cache.has_reached(expected.key, expected.version)
        if expected.deleted_uid is None:
            return reached
        held = self._cache.get(expected.key)
        if held is None or held["metadata"]["uid"] != expected.deleted_uid:
            return True
        return reached and "deletionTimestamp" in held["metadata"]
