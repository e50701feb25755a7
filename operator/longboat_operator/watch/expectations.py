"""Holds a key back until the cache shows what its last writes did, so that nothing is created twice from a stale view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longboat_operator.model import Key
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
    """Holds what each key still waits for."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._open: dict[Key, list[Expectation]] = {}

    def expect(self, key: Key, expectations: Sequence[Expectation]) -> None:
        """Adds to what a key waits for."""
        if expectations:
            self._open.setdefault(key, []).extend(expectations)

    def met(self, key: Key) -> bool:
        """Whether the cache shows all that the key waits for; what it shows is dropped."""
        if key not in self._open:
            return True
        self._open[key] = [expected for expected in self._open[key] if not self._shown(expected)]
        if not self._open[key]:
            del self._open[key]
        return key not in self._open

    def forget(self, key: Key) -> None:
        """Forgets what the key waits for."""
        self._open.pop(key, None)

    def waits(self, key: Key) -> bool:
        """Whether the key waits for something, as of the last `expect` or `met`."""
        return key in self._open

    def waiting(self) -> list[Key]:
        """Returns the keys that wait for something, each as of its last `expect` or `met`."""
        return list(self._open)

    def _shown(self, expected: Expectation) -> bool:
        reached = self._cache.has_reached(expected.key, expected.version)
        if expected.deleted_uid is None:
            return reached
        cached = self._cache.get(expected.key)
        if cached is None or cached["metadata"]["uid"] != expected.deleted_uid:
            return True
        return reached and "deletionTimestamp" in cached["metadata"]
