from __future__ import annotations

import time

import pytest
import torch

from longboat_runtime.weights.bucket import Bucket
from longboat_runtime.weights.gate import FetchFailed, PublicationRefused
from longboat_runtime.weights.payload import FETCH_TRIES, fetched
from longboat_runtime.weights.publish import pack


class Unreliable:
    """Buckets that are not there the first `failures` times they are asked for."""

    def __init__(self, failures: dict[int, int]) -> None:
        self.packed = pack([(name, torch.ones(100)) for name in "abc"], bucket_bytes=400)
        self.nbytes, self.checksum = self.packed.nbytes, self.packed.checksum
        self.failures = failures

    def __len__(self) -> int:
        return len(self.packed)

    def bucket(self, index: int) -> Bucket:
        if self.failures.get(index, 0) > 0:
            self.failures[index] -= 1
            raise OSError("no route to host")
        return self.packed.bucket(index)


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long it waited before each further try."""
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    return waited


@pytest.mark.parametrize("index", [0, 1, 2])
def test_any_bucket_is_asked_for_again(index: int, pauses: list[float]) -> None:
    payload = Unreliable({index: FETCH_TRIES - 1})
    assert [entry.name for bucket in fetched(payload) for entry in bucket.entries] == ["a", "b", "c"]
    assert len(pauses) == FETCH_TRIES - 1
    assert sorted(pauses) == pauses


def test_weights_that_are_gone_are_known_before_anything_is_changed() -> None:
    with pytest.raises(FetchFailed, match="bucket 1 of 3 can't be fetched: no route to host"):
        fetched(Unreliable({0: FETCH_TRIES}))


def test_a_bucket_that_stays_away_is_no_refusal() -> None:
    contents = fetched(Unreliable({1: FETCH_TRIES}))
    next(contents)
    with pytest.raises(FetchFailed, match="bucket 2 of 3") as failed:
        next(contents)
    assert not isinstance(failed.value, PublicationRefused)
