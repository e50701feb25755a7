"""The compact form of the records of pods to which nothing has happened. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

from longboat_crds.status import MAX_PODS, IntactPods, PodRecord, RoleStatus
from longboat_crds.tolerance import read_known

# What a record says of a pod to which nothing has happened, besides which pod it is.
SEEN = ("node", "wasReady")
IDENTITY = ("pool", "index", "attempt")
_HISTORY = tuple(
    name for name, info in PodRecord.model_fields.items() if (info.alias or name) not in (*IDENTITY, *SEEN)
)


def is_intact(record: PodRecord) -> bool:
    """Whether nothing has happened to the pod of the record, nor to one that it replaced."""
    return not any(getattr(record, name) for name in _HISTORY)


def compact(records: Iterable[PodRecord]) -> list[IntactPods]:
    """Returns the compact form of records of intact pods: the numbers of those that are alike, as ranges. Nodes are left out."""
    alike: dict[tuple[str | None, int, bool], list[int]] = {}
    for record in records:
        alike.setdefault((record.pool, record.attempt, record.was_ready), []).append(record.index)
    return [
        IntactPods(pool=pool, attempt=attempt, was_ready=was_ready, indexes=ranges_of(indexes))
        for (pool, attempt, was_ready), indexes in sorted(
            alike.items(), key=lambda item: (item[0][0] or "", *item[0][1:])
        )
    ]


def records_of(role: RoleStatus | None) -> Iterator[PodRecord]:
    """Yields all records of a role's pods, those in the compact form of no more pods than a job may have."""
    if role is not None:
        for group, index in _places(role.intact or ()):
            yield _record(group.pool, index, group.attempt, group.was_ready)
        yield from role.pods or ()


def stored_records(role: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields all records of a role's pods as JSON, from its status as stored. Fields that say nothing are left out."""
    if "intact" in role:
        for group, index in _places(read_known(RoleStatus, {"intact": role["intact"]}).intact or ()):
            pool = {"pool": group.pool} if group.pool else {}
            yield {**pool, "index": index, "attempt": group.attempt}
    for record in role.get("pods") or ():
        yield {key: value for key, value in record.items() if value or key in IDENTITY}


def ranges_of(indexes: Iterable[int]) -> str:
    """Returns distinct numbers as ranges: `0-3,5`."""
    ranges: list[list[int]] = []
    for index in sorted(indexes):
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return ",".join(f"{first}-{last}" if first < last else str(first) for first, last in ranges)


def indexes_of(ranges: str) -> Iterator[int]:
    """Yields the numbers in `ranges`; of a range that ends before it begins, the first, so that each takes no more time than it has numbers."""
    for each in ranges.split(","):
        first, _, last = each.partition("-")
        yield from range(int(first), max(int(first), int(last or first)) + 1)


@lru_cache(maxsize=65_536)
def _record(pool: str | None, index: int, attempt: int, was_ready: bool) -> PodRecord:
    """Returns the record of an intact pod. Making it takes long, and the pods of all jobs are alike."""
    return PodRecord.model_construct(pool=pool, index=index, attempt=attempt, was_ready=was_ready)


def _places(groups: Iterable[IntactPods]) -> Iterator[tuple[IntactPods, int]]:
    return islice(((group, index) for group in groups for index in indexes_of(group.indexes)), MAX_PODS)
