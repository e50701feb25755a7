"""Takes in events: trims them, puts them into the cache, notes them for freshness, and reports them to the controller."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from longboat_operator.kube.clock import ServerClock
from longboat_operator.kube.resources import CORDONED_NODE, POD, RL_JOB, SECRET
from longboat_operator.model import JobKey, Object
from longboat_operator.watch.cache import Cache, Change, ObjectKey, Source, key_of, version_of
from longboat_operator.watch.freshness import Freshness
from longboat_operator.watch.pod_times import with_server_times
from longboat_operator.watch.trim import trim


class RestoredError(Exception):
    """The API server's data were restored from a backup: what was read from it since has never happened. A new process reads all anew."""


class Feed:
    """Both sides of the watch, kopf's and ours, and the repair report here."""

    def __init__(
        self,
        cache: Cache,
        freshness: Freshness,
        server_clock: ServerClock,
        on_change: Callable[[Change], None],
        on_listed: Callable[[Source], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_change` is told every change of a watched object; `on_listed` is called once a source has been listed in full.

        Between two lists objects may have come and gone unseen.
        """
        self._cache = cache
        self._freshness = freshness
        self._server_clock = server_clock
        self._on_change = on_change
        self._on_listed = on_listed
        self._clock = clock

    def put(self, obj: Mapping[str, Any]) -> None:
        """Takes in an object that was listed, added or changed."""
        key, trimmed = key_of(obj), self._trimmed(obj)
        self._freshness.note_reached(key, version_of(trimmed))
        self._tell(self._cache.put(trimmed))

    def remove(self, obj: Mapping[str, Any]) -> None:
        """Records that an object was deleted; `obj` is its last state, with the deletion's resourceVersion."""
        self.vanish(key_of(obj), version_of(obj), self._trimmed(obj))

    def vanish(self, key: ObjectKey, version: int, last: Object | None = None) -> None:
        """Records that an object is known to be gone as of `version`; `last` is its last state, trimmed, if that is known."""
        self._freshness.note_reached(key, version)
        self._tell(self._cache.remove(key, version, last))

    def _trimmed(self, obj: Mapping[str, Any]) -> Object:
        key = key_of(obj)
        if key.kind == POD.kind:
            obj = with_server_times(obj, self._cache.get(key), self._server_clock.now())
        return trim(obj)

    def listed(self, source: Source, present: Mapping[ObjectKey, int], version: int) -> None:
        """Records that a source was listed in full as of `version`; its objects, `present` in these versions, have been put already."""
        self.absent(source, present, version)
        self.heard(source, version)
        self.caught_up(source)

    def caught_up(self, source: Source) -> None:
        """Records that the cache shows all that a list of the source has shown."""
        self._freshness.note_listed(source, self._clock())
        self._on_listed(source)
        if source.kind == CORDONED_NODE.kind:  # Last: the listener checks whether this was the first list of nodes.
            self._cache.note_nodes(listed=True)

    def refused(self, source: Source, reason: str, *, forbidden: bool = False) -> None:
        """Records why a source can't be listed, or not be watched any more: it must be listed again before its namespace is served.

        `forbidden`: this process has no right to it.
        """
        self._freshness.note_unlisted(source, reason)
        if source.kind == CORDONED_NODE.kind and forbidden and self._cache.may_watch_nodes:
            self._cache.note_nodes(listed=False)
            self._on_listed(source)  # All jobs are planned: budgets that are closed would never open.

    def unwatched(self, source: Source) -> None:
        """Records that a source isn't watched for now: it must be listed again before its namespace is served."""
        self._freshness.note_unlisted(source)

    def owes(self, source: Source) -> bool:
        """Whether an object that a list has shown hasn't come through the source's stream yet."""
        return self._freshness.owes(source)

    def absent(self, source: Source, present: Mapping[ObjectKey, int], version: int) -> None:
        """Removes what a list as of `version` no longer shows of a source: only `present` is left of what was held or owed up to then.

        Raises:
            RestoredError: the list shows an object in an older version than the cache, although it is newer than both.
        """
        for key, cached_version in self._cache.versions(source).items():
            if cached_version > version:
                continue
            if key not in present:
                self.vanish(key, version)
            elif present[key] < cached_version:
                raise RestoredError(f"{key.kind} {key.name} went back from version {cached_version} to {present[key]}")
        self._freshness.note_gone(source, present, version)

    def heard(self, source: Source, version: int) -> None:
        """Records that an ordered source has delivered everything up to `version`."""
        self._cache.saw(source, version)
        self._freshness.note_heard(source, self._clock())

    def newer(self, key: ObjectKey, version: int) -> None:
        """Records that a re-list shows a version that the cache lacks."""
        self._freshness.note_newer(key, version, self._clock())

    def _tell(self, change: Change | None) -> None:
        if change is None:
            return
        if change.key.kind == RL_JOB.kind and _replaced(change):
            self._forget_secrets(JobKey(change.key.namespace, change.key.name))
        self._on_change(change)

    def _forget_secrets(self, job: JobKey) -> None:
        for name in self._cache.children(job)[SECRET.kind]:
            self._cache.remove(ObjectKey(SECRET.kind, job.namespace, name), 0)


def _replaced(change: Change) -> bool:
    return change.old is not None and (change.new is None or _uid(change.old) != _uid(change.new))


def _uid(obj: Object) -> Any:
    return obj["metadata"].get("uid")
