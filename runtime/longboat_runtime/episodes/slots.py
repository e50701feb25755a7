"""Chooses which sample begins its episode next, and in which pod. Pure.

The rule: samples wait by pool. Groups come in the order in which they were first submitted, the samples of a group by their number; one that
is submitted again, since its episode was lost, has the place of its group. The first one that waits begins as soon as a pod of its pool has a
free slot, in the one with the largest free share; among equals, in the first by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from types import MappingProxyType
from typing import NamedTuple

from longboat_runtime.samples import SampleId


class Begun(NamedTuple):
    """A sample whose episode begins in a pod."""

    sample: SampleId
    pod: str


@dataclass(slots=True)
class Pod:
    """A pod that plays `slots` episodes of its pool at once, and has `taken` some. Nothing begins in one that isn't `open`."""

    pool: str
    slots: int
    open: bool = True
    taken: int = 0

    @property
    def free(self) -> float:
        """The share of its slots that is free."""
        return (self.slots - self.taken) / self.slots if self.open else 0.0


@dataclass(slots=True)
class _Group:
    """The place of a group in the order, and those of its samples that wait, play or were lost."""

    place: int
    samples: set[SampleId] = field(default_factory=set)


class EpisodeSlots:
    """Keeps which samples wait, and how many slots of each pod are taken."""

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}
        self._groups: dict[tuple[int, int, int], _Group] = {}
        self._submitted = 0
        # The pool of each sample that waits, and by pool heaps of them. An entry of a sample that no longer waits is passed over.
        self._waiting: dict[SampleId, str] = {}
        self._heaps: dict[str, list[tuple[int, SampleId]]] = {}

    @property
    def pods(self) -> Mapping[str, Pod]:
        """The pods, by name."""
        return MappingProxyType(self._pods)

    @property
    def waiting(self) -> Mapping[SampleId, str]:
        """The pools of the samples that wait."""
        return MappingProxyType(self._waiting)

    def join(self, name: str, pool: str, slots: int) -> None:
        """Adds a pod, of which no slot is taken."""
        self._pods[name] = Pod(pool, slots)

    def leave(self, name: str) -> None:
        """Removes a pod."""
        del self._pods[name]

    def submit(self, sample: SampleId, pool: str) -> None:
        """Has a sample wait for a slot."""
        group = self._groups.setdefault(sample[:3], _Group(self._submitted))
        self._submitted += 1
        group.samples.add(sample)
        self._waiting[sample] = pool
        heappush(self._heaps.setdefault(pool, []), (group.place, sample))

    def begin(self) -> list[Begun]:
        """Returns the samples that begin now, in order; each takes a slot."""
        begun = []
        for pool, heap in self._heaps.items():
            pods = [(-pod.free, name) for name, pod in self._pods.items() if heap and pod.pool == pool and pod.free]
            heapify(pods)
            while heap and pods:
                _, sample = heappop(heap)
                if self._waiting.get(sample) == pool:
                    _, name = heappop(pods)
                    pod = self._pods[name]
                    pod.taken += 1
                    if pod.free:
                        heappush(pods, (-pod.free, name))
                    del self._waiting[sample]
                    begun.append(Begun(sample, name))
        return begun

    def free(self, name: str) -> None:
        """Frees a slot of a pod."""
        self._pods[name].taken -= 1

    def withdraw(self, sample: SampleId) -> bool:
        """Has a sample wait no more; returns whether it did."""
        waited = self._waiting.pop(sample, None) is not None
        if waited:
            self.end(sample)
        return waited

    def end(self, sample: SampleId) -> None:
        """Forgets a sample that isn't submitted again, unless its data is lost."""
        if group := self._groups.get(sample[:3]):
            group.samples.discard(sample)
            if not group.samples:
                del self._groups[sample[:3]]
