from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from longboat_runtime.weights import handover
from longboat_runtime.weights.gate import FetchFailed
from longboat_runtime.weights.handover_files import PREFIX, sweep
from longboat_runtime.weights.layout import aligned
from longboat_runtime.weights.payload import fetched
from tests.support.publications import pack


def named_tensors() -> list[tuple[str, torch.Tensor]]:
    torch.manual_seed(0)
    return [
        ("embedding", torch.randn(30, 8)),
        ("half", torch.randn(7).bfloat16()),
        ("scalar", torch.tensor(3.0)),
        ("empty", torch.zeros(0, 4)),
        ("transposed", torch.randn(20, 10).t()),
        ("parameter", torch.nn.Parameter(torch.randn(5))),
    ]


@pytest.mark.parametrize("limit", [64, 1000, 10**6])
def test_tensors_come_back_whatever_the_size_of_buckets(limit: int) -> None:
    packed = pack(named_tensors(), limit)
    unpacked = [pair for bucket in fetched(packed) for pair in bucket.tensors()]
    for (name, tensor), (unpacked_name, unpacked_tensor) in zip(named_tensors(), unpacked, strict=True):
        assert name == unpacked_name
        assert tensor.dtype == unpacked_tensor.dtype
        assert torch.equal(tensor, unpacked_tensor)
    largest = max(tensor.numel() * tensor.element_size() for _, tensor in named_tensors())
    assert all(len(bucket.data) <= max(limit, aligned(largest)) for bucket in packed.contents)
    assert packed.checksum == pack(named_tensors()).checksum


def test_one_changed_bit_changes_the_checksum() -> None:
    changed = named_tensors()
    changed[1][1].view(torch.uint8)[0] ^= 1
    assert pack(changed).checksum != pack(named_tensors()).checksum


def test_buckets_are_written_into_one_file_that_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "SHARED_MEMORY", tmp_path)
    packed = pack(named_tensors(), 600)
    assert len({len(bucket.data) for bucket in packed.contents}) > 1
    with handover.HandoverFile() as file:
        paths = set()
        for bucket in packed.contents:
            paths.add(path := file.write(bucket))
            assert Path(path).read_bytes()[: len(bucket.data)] == bucket.data.tobytes()
        (inode,) = {path.stat().st_ino for path in tmp_path.iterdir()}
        assert len(paths) == 1
        assert inode
    assert list(tmp_path.iterdir()) == []


def test_a_full_shared_memory_is_an_error_that_names_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(handover, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", full)
    (bucket,) = pack(named_tensors()).contents
    with (
        handover.HandoverFile() as file,
        pytest.raises(FetchFailed, match="enlarge it, the volume `shm` of rollout pods"),
    ):
        file.write(bucket)
    assert list(tmp_path.iterdir()) == []


def test_files_of_dead_processes_are_swept(tmp_path: Path) -> None:
    """Also those of one that had this process's number: in a container that restarts numbers recur."""
    dead, before, living = (tmp_path / f"{PREFIX}{number}-0" for number in (999999999, os.getpid(), os.getppid()))
    other = tmp_path / "psm_other"
    for path in (dead, before, living, other):
        path.write_bytes(b"x")
    assert {*sweep(tmp_path)} == {dead, before}
    assert {*tmp_path.iterdir()} == {living, other}
