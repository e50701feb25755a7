"""Deletes the data of samples from the store, once the driver has no use for it and nobody else holds it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from longboat_runtime.driver.background import Background
from longboat_runtime.samples import SampleId
from longboat_runtime.store.protocol import SampleStore


class SampleData:
    """Counts holds. A sample's data is deleted once it is discarded and has no hold, whichever comes last."""

    def __init__(self, store: SampleStore, background: Background) -> None:
        self._store, self._background = store, background
        self._holds: Counter[SampleId] = Counter()
        self._discarded: set[SampleId] = set()

    def hold(self, samples: Iterable[SampleId]) -> None:
        """Adds a hold of each sample, which `release` takes back."""
        self._holds.update(samples)

    def release(self, samples: Iterable[SampleId]) -> None:
        """Takes one hold of each sample back."""
        free = []
        for sample in samples:
            self._holds[sample] -= 1
            if not self._holds[sample]:
                del self._holds[sample]
                if sample in self._discarded:
                    free.append(sample)
        self._discarded.difference_update(free)
        self._delete(free)

    def discard(self, samples: Collection[SampleId]) -> None:
        """Says that the driver has no use for these samples any more."""
        self._discarded.update(sample for sample in samples if sample in self._holds)
        self._delete([sample for sample in samples if sample not in self._holds])

    def _delete(self, samples: list[SampleId]) -> None:
        if samples:
            self._background.spawn(self._store.delete(samples))
