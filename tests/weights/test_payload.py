from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from longboat_runtime.weights import payload as module
from longboat_runtime.weights.bucket import Bucket
from longboat_runtime.weights.gate import FetchFailed, PublicationRefused
from longboat_runtime.weights.payload import FETCH_TRIES, StoredBucket, fetched
from tests.support.publications import pack


class Unreliable:
    """An object that can't be fetched the first `failures` times."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def __await__(self):
        async def fetch() -> np.ndarray:
            self.failures -= 1
            if self.failures >= 0:
                raise OSError("no route to host")
            return np.ones(4, np.uint8)

        return fetch().__await__()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long it waited before each further try."""
    waited: list[float] = []

    class Clock:
        @staticmethod
        async def sleep(seconds: float) -> None:
            waited.append(seconds)

    monkeypatch.setattr(module, "asyncio", Clock)
    return waited


def test_a_bucket_is_requested_again(pauses: list[float]) -> None:
    bucket = asyncio.run(StoredBucket((), Unreliable(FETCH_TRIES - 1)).fetch())  # type: ignore[arg-type]
    assert bucket.data.tolist() == [1, 1, 1, 1]
    assert len(pauses) == FETCH_TRIES - 1
    assert sorted(pauses) == pauses


def test_a_bucket_that_stays_away_is_no_refusal(pauses: list[float]) -> None:
    with pytest.raises(FetchFailed, match="no route to host") as failed:
        asyncio.run(StoredBucket((), Unreliable(FETCH_TRIES)).fetch())  # type: ignore[arg-type]
    assert not isinstance(failed.value, PublicationRefused)


class Gone:
    """Buckets of which one is gone."""

    def __init__(self, gone: int) -> None:
        self.packed, self.gone = pack([(name, torch.ones(100)) for name in "abc"], limit=400), gone
        self.checksum = self.packed.checksum

    def __len__(self) -> int:
        return len(self.packed)

    def bucket(self, index: int) -> Bucket:
        if index == self.gone:
            raise OSError("no route to host")
        return self.packed.bucket(index)


def test_weights_that_are_gone_are_known_before_anything_is_changed() -> None:
    with pytest.raises(FetchFailed, match="bucket 1 of 3 can't be fetched: no route to host"):
        fetched(Gone(0))


def test_a_later_bucket_is_missed_when_it_is_its_turn() -> None:
    contents = fetched(Gone(1))
    assert [entry.name for entry in next(contents).entries] == ["a"]
    with pytest.raises(FetchFailed, match="bucket 2 of 3"):
        next(contents)
