"""Judges whether the cache is current, from when each stream last spoke and from what re-lists showed. No I/O.

A stream can be dead while its process looks alive (kopf hides its bookmarks; a hung connection says nothing). Two signs: an
ordered stream of ours is silent for longer than its bookmarks take, or a re-list shows an object newer than the cache's
that the stream doesn't deliver in time.

A namespace is served only while each of its sources has been listed: without its pods, a job would seem to have none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator

from longboat_operator.watch.cache import BySource, ObjectKey, Source

# Bookmarks come every minute, a dead connection is given up after 90 s, one reconnection may fail.
SILENCE_SECONDS = 240.0
# A healthy stream delivers in well under a second.
LAG_SECONDS = 60.0
# Only a restart brings back a stream that has lagged for this long.
DEAD_SECONDS = 300.0


class Freshness:
    """All times are seconds of one monotonic clock, given by the caller."""

    def __init__(
        self, sources: Iterable[Source], bookmarked: Iterable[Source], optional: Iterable[Source] = ()
    ) -> None:
        """`sources`: all that must be listed; `bookmarked`: those of them that speak at least every minute.

        `optional` ones are waited for, but namespaces are served without them if they can't be listed.
        """
        # What must still be listed, and why the last try failed (None: none has yet).
        self._unlisted: dict[Source, str | None] = dict.fromkeys(sources)
        self._optional = frozenset(optional)
        self._unlisted_in = Counter[str | None](
            source.namespace for source in self._unlisted if self._is_needed(source)
        )
        self._bookmarked = frozenset(bookmarked)
        self._heard: dict[Source, float] = {}
        self._awaited: BySource[tuple[int, float]] = BySource()

    @property
    def settled(self) -> bool:
        """Whether each namespace is served, or has a source that couldn't be listed."""
        return not any(self._awaited_lists())

    @property
    def unlisted(self) -> list[Source]:
        """Sources to be listed."""
        return sorted(self._unlisted, key=str)

    @property
    def failing(self) -> dict[Source, str]:
        """Sources that couldn't be listed so far, with the server's words."""
        return {source: reason for source in self.unlisted if (reason := self._unlisted[source]) is not None}

    @property
    def notes(self) -> list[str]:
        """Says which sources can't be listed, and why."""
        return [f"{source} can't be listed: {reason}" for source, reason in self.failing.items()]

    def serves(self, namespace: str) -> bool:
        """Whether the cache shows all kinds in the namespace."""
        return not self._unlisted_in[None] and not self._unlisted_in[namespace]

    def note_unlisted(self, source: Source, reason: str | None = None) -> None:
        """Notes that a source must be listed (again), and why that failed if it was just tried."""
        if source not in self._unlisted and self._is_needed(source):
            self._unlisted_in[source.namespace] += 1
        self._unlisted[source] = reason

    def note_listed(self, source: Source, now: float) -> None:
        """Notes that a source's first list, or a later one, is complete."""
        if source in self._unlisted:
            del self._unlisted[source]
            if self._is_needed(source):
                self._unlisted_in[source.namespace] -= 1
        self._heard[source] = now

    def note_heard(self, source: Source, now: float) -> None:
        """Notes that the source spoke: an event or a bookmark came, a list was completed, or a watch began."""
        self._heard[source] = now

    def note_newer(self, key: ObjectKey, version: int, now: float) -> None:
        """Notes that a re-list shows `version`, which the cache lacks: the stream owes it from now on, or still."""
        owed = self._awaited.get(key)
        self._awaited.put(key, (version, owed[1] if owed else now))

    def note_reached(self, key: ObjectKey, version: int) -> None:
        """Notes that `version` of the object, or its deletion as of then, has come: it, or an older one, is no longer owed."""
        if (awaited := self._awaited.get(key)) and version >= awaited[0]:
            self._awaited.drop(key)

    def note_gone(self, source: Source, present: Container[ObjectKey], version: int) -> None:
        """Notes that a list as of `version` shows nothing but `present` of a source: what else was owed up to then is gone."""
        for key, _ in list(self._awaited.within(source)):
            if key not in present:
                self.note_reached(key, version)

    def silence(self, now: float) -> dict[Source, float]:
        """Returns the seconds since each bookmarked source was last heard; those that must be listed are left out."""
        return {source: now - self._heard[source] for source in self._bookmarked if source not in self._unlisted}

    def lag(self, now: float) -> float:
        """Returns the seconds that the most overdue object has been owed; 0 if none is."""
        return max((now - since for _, (_, since) in self._awaited.all()), default=0.0)

    def owes(self, source: Source) -> bool:
        """Whether an object that a re-list has shown still hasn't come through this source's stream."""
        return any(self._awaited.within(source))

    def problems(self, now: float) -> list[str]:
        """Says why plans may be made from a stale view, or none can be made; empty when all is well.

        A namespace that isn't served is no problem while others are.
        """
        kinds = {source.kind for source in self._awaited_lists()}
        problems = [f"{kind} not yet listed" for kind in sorted(kinds)]
        if not problems and (self._unlisted_in[None] or all(self._unlisted_in.values())):
            problems.append("no namespace is served")
        problems += [
            f"{source.kind} watch silent for {silence:.0f} s"
            for source, silence in self.silence(now).items()
            if silence > SILENCE_SECONDS
        ]
        overdue = [key for key, (_, since) in self._awaited.all() if now - since > LAG_SECONDS]
        problems += [
            f"{kind} watch is dead: re-lists show newer objects" for kind in sorted({key.kind for key in overdue})
        ]
        return problems

    def dead(self, now: float) -> bool:
        """Whether only a new process helps: an object has been owed for longer than `DEAD_SECONDS`.

        An absent API server adds nothing to what is owed, since no list succeeds. What was owed before still counts.
        """
        return self.lag(now) > DEAD_SECONDS

    def _awaited_lists(self) -> Iterator[Source]:
        """Yields the sources to be listed in namespaces in which none fails, and optional ones that haven't failed."""
        failing = {
            source.namespace
            for source, reason in self._unlisted.items()
            if reason is not None and self._is_needed(source)
        }
        return (
            source
            for source, reason in self._unlisted.items()
            if source.namespace not in failing and (reason is None or self._is_needed(source))
        )

    def _is_needed(self, source: Source) -> bool:
        return source not in self._optional
