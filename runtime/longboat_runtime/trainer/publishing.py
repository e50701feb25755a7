"""A rank's part in publications: it takes part in every gather, and sends buckets if it is the sender of its pod."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import islice
from typing import TYPE_CHECKING

from longboat_runtime.trainer.full_weights import gather_unit, published_weights, units
from longboat_runtime.trainer.sharding import TORCH_DTYPES
from longboat_runtime.weights.layout import BucketLayout, lay_out
from longboat_runtime.weights.sender import WeightSender

if TYPE_CHECKING:
    from longboat_runtime.trainer.rank import TrainerRank


class RankPublisher:
    """Gathers buckets at their senders, one after another. All ranks make the same calls, in the same order."""

    def __init__(self, trainer: TrainerRank, senders: Sequence[int]) -> None:
        """Allocates a sender's copy of its part, so that a host that has too little memory fails before the first step."""
        self._trainer, self._senders = trainer, senders
        self._dtype = TORCH_DTYPES[trainer.spec.model.dtype]
        self._units = units(trainer.model, self._dtype)
        self.layout: tuple[BucketLayout, ...] = lay_out([unit.kinds for unit in self._units], len(senders))
        self.sender: WeightSender | None = None
        if trainer.rank in senders:
            self.sender = WeightSender(self.layout, senders.index(trainer.rank), trainer.platform.pinned)

    def begin(self, version: int | None) -> None:
        """Announces a version: `gather` follows. Earlier ones can no longer be fetched."""
        if self.sender is not None:
            self.sender.begin(version)

    def gather(self) -> dict[int, list[bytes]]:
        """Gathers all buckets; senders hand each out as soon as it is complete. Returns the digests of this rank's buckets, by number."""
        weights = published_weights(self._trainer.model)
        for number, bucket in enumerate(self.layout):
            receiver = self._senders[bucket.sender]
            sender = self.sender if receiver == self._trainer.rank else None
            with sender.filling(number) if sender is not None else nullcontext() as places:
                remaining = iter(places or ())
                for unit in (self._units[index] for index in bucket.units):
                    unit_places = None if places is None else [*islice(remaining, len(unit.kinds))]
                    gather_unit(self._trainer.model, weights, unit, self._dtype, receiver, unit_places)
        return {} if self.sender is None else self.sender.digests
