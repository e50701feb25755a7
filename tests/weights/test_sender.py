from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from longboat_runtime.weights.checksum import checksum_of
from longboat_runtime.weights.layout import lay_out
from longboat_runtime.weights.publication import PublicationGone
from longboat_runtime.weights.sender import WeightSender
from tests.support.publications import pack, tensor_kind
from tests.support.waiting import DEADLINE_SECONDS, eventually

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(5, dtype=torch.bfloat16), "c": torch.arange(3)}
UNITS = [[tensor_kind(*named)] for named in TENSORS.items()]


def allocate(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8)


@pytest.fixture
def sender() -> WeightSender:
    return WeightSender(lay_out(UNITS, 1, 64), 0, allocate)


def fill(sender: WeightSender, number: int, times: int = 1) -> None:
    with sender.filling(number) as places:
        places[0].copy_(list(TENSORS.values())[number] * times)


def test_buckets_hold_what_was_filled_in(sender: WeightSender) -> None:
    sender.begin(3)
    for number in range(3):
        fill(sender, number)
    digests = []
    for number, (name, value) in enumerate(TENSORS.items()):
        with sender.reading(3, number) as (bucket, of_bucket):
            ((read_name, read),) = bucket.tensors()
            assert read_name == name
            assert torch.equal(read, value)
            digests += of_bucket
    assert checksum_of(digests) == pack(TENSORS.items()).checksum
    assert sender.digests.keys() == {0, 1, 2}


def test_a_bucket_is_read_as_soon_as_it_is_there_while_others_are_filled(sender: WeightSender) -> None:
    sender.begin(0)
    with ThreadPoolExecutor() as threads:

        def read(number: int) -> float:
            with sender.reading(0, number) as (bucket, _):
                return float(next(bucket.tensors())[1].sum())

        readers = [threads.submit(read, number) for number in range(2)]
        fill(sender, 0)
        assert readers[0].result(DEADLINE_SECONDS) == 15.0
        assert not readers[1].done()
        fill(sender, 1)
        assert readers[1].result(DEADLINE_SECONDS) == 5.0


def test_another_version_ends_the_wait_for_this_one(sender: WeightSender) -> None:
    sender.begin(0)
    with ThreadPoolExecutor() as threads:

        def read() -> None:
            with sender.reading(0, 2):
                pass

        reader = threads.submit(read)
        sender.begin(1)
        with pytest.raises(PublicationGone, match="version 0 has been replaced by version 1"):
            reader.result(DEADLINE_SECONDS)


def test_a_bucket_that_is_read_is_not_overwritten(sender: WeightSender) -> None:
    sender.begin(0)
    fill(sender, 0)
    filled = threading.Event()

    def replace() -> None:
        sender.begin(1)
        fill(sender, 0, times=2)
        filled.set()

    with sender.reading(0, 0) as (bucket, _):
        writer = threading.Thread(target=replace)
        writer.start()
        eventually(lambda: sender.digests == {})
        assert torch.equal(next(bucket.tensors())[1], TENSORS["a"])
        assert not filled.is_set()
    writer.join(DEADLINE_SECONDS)
    with sender.reading(1, 0) as (bucket, _):
        assert torch.equal(next(bucket.tensors())[1], TENSORS["a"] * 2)


def test_versions_are_written_into_the_same_memory() -> None:
    sizes: list[int] = []

    def counted(size: int) -> torch.Tensor:
        sizes.append(size)
        return allocate(size)

    sender = WeightSender(lay_out(UNITS, 2, 64), 0, counted)
    for version in range(3):
        sender.begin(version)
        for number in (0, 2):
            fill(sender, number)
    assert sender.nbytes == sum(sizes) == 128, "its own part, once"
