"""The parts of a driver that watch its events and decide nothing about samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from longboat_crds.job import RLJobSpec
from longboat_runtime.driver.batch import Batch
from longboat_runtime.rounds.events import Entry
from longboat_runtime.rounds.records import GroupRecord
from longboat_runtime.status_fragment import StatusFragment

if TYPE_CHECKING:
    from longboat_runtime.driver.resume import Restored


class Observer:
    """Watches a driver. An observer overrides what it needs.

    It may put events, measurements and outcomes into the inbox. An error in any of its methods ends the run, so what is best effort
    catches its own.
    """

    watches: ClassVar[tuple[type, ...]] = ()
    """The types of the entries that `on` gets."""

    def resume(self, restored: Restored) -> None:
        """Starts from the restored state, before any event."""

    def on(self, entry: Entry, before: GroupRecord | None) -> None:
        """Notes an entry that was folded and logged. `before` is the group that it gives up, as it was; else None.

        The driver discards afterwards what it has no more use for; the data of samples that are held here (`SampleData`) stays.
        """

    async def run(self) -> None:
        """Works beside the driver, from its start to its end."""

    async def edit(self, spec: RLJobSpec) -> None:
        """Follows an edit of the spec."""

    async def before_commit(self, round_: int, batch: Batch) -> None:
        """Is awaited once the batch of a round is trained, before that is committed and the round forgotten."""

    async def before_publication(self, version: int) -> None:
        """Is awaited before engines get these weights."""

    async def before_round(self, version: int) -> None:
        """Is awaited once engines have these weights, before the next round, except where rounds overlap (BoundedAsync)."""

    async def metrics(self, step: int) -> Mapping[str, float]:
        """Returns what it adds to the record of a step, as the last of the step's work."""
        return {}

    def status(self) -> StatusFragment:
        """Returns its part of the status."""
        return StatusFragment()

    async def close(self) -> None:
        """Completes what the job's files lack, once the last step is saved."""


class Observers:
    """All observers of a driver, in one order. Each gets only entries of its types: there are many samples in flight."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = [*observers]
        self._by_type: dict[type, list[Observer]] = {}
        for observer in self._observers:
            for kind in observer.watches:
                self._by_type.setdefault(kind, []).append(observer)

    def __iter__(self) -> Iterator[Observer]:
        return iter(self._observers)

    def watching(self, kind: type) -> Sequence[Observer]:
        """Returns those that watch entries of this type."""
        return self._by_type.get(kind, ())

    async def before_commit(self, round_: int, batch: Batch) -> None:
        """Waits for all, one after the other."""
        for observer in self._observers:
            await observer.before_commit(round_, batch)

    async def before_publication(self, version: int) -> None:
        """Waits for all, one after the other."""
        for observer in self._observers:
            await observer.before_publication(version)

    async def before_round(self, version: int) -> None:
        """Waits for all, one after the other."""
        for observer in self._observers:
            await observer.before_round(version)

    async def metrics(self, step: int) -> dict[str, float]:
        """Returns what all add to the record of a step."""
        metrics: dict[str, float] = {}
        for observer in self._observers:
            metrics |= await observer.metrics(step)
        return metrics
