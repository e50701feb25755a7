"""How much shared memory `longboat run` gives to Ray."""

import json
import struct
from pathlib import Path

import pytest

from longboat_crds.job import RLJobSpec
from longboat_crds.model import DType
from longboat_runtime.local.ray import bucket_bytes, object_store
from tests.support.tiny_model import build_tiny_model

GIB = 2**30


def spec(model: Path) -> RLJobSpec:
    return RLJobSpec.model_validate(
        {
            "runtimeRef": {"name": "any"},
            "model": {"path": str(model), "dtype": "BFloat16"},
            "dataset": {"reasoningGym": {"task": "chain_sum"}},
            "algorithm": {"groupSize": 16},
            "rounds": {"steps": 1, "promptsPerRound": 64},
            "rollout": {"sampling": {"maxTokens": 8192}},
            "rewards": [{"name": "score", "function": "rewards.py:score"}],
            "trainer": {"maxTokensPerBin": 16384},
        }
    )


def write_shard(file: Path, parameters: int) -> None:
    """A safetensors file of one tensor that takes no space on the disk."""
    header = json.dumps(
        {file.stem: {"dtype": "F32", "shape": [parameters], "data_offsets": [0, parameters * 4]}}
    ).encode()
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(header)) + header)
        out.truncate(8 + len(header) + parameters * 4)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A model of 7 x 10^9 parameters in two shards, beside a file of the same weights that no index names."""
    for name, parameters in (("a", 4 * 10**9), ("b", 3 * 10**9), ("consolidated", 7 * 10**9)):
        write_shard(tmp_path / f"{name}.safetensors", parameters)
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def test_buckets_hold_the_models_parameters_in_the_jobs_number_format(tmp_path: Path, large: Path) -> None:
    assert bucket_bytes(build_tiny_model(tmp_path / "tiny"), DType.FLOAT32, 1) == 2**20, "the least"
    assert bucket_bytes(large, DType.BFLOAT16, 1) == 8 * 10**9, "a large tensor has its own"


def test_the_store_holds_buckets_and_the_responses_of_a_step(large: Path) -> None:
    size, shortage = object_store(spec(large), free=64 * GIB)
    responses = 64 * 16 * 8192
    assert 4 * 8 * 10**9 + 8 * responses <= size < 4 * 8 * 10**9 + GIB
    assert shortage is None


def test_less_shared_memory_than_that_is_told_with_the_cure(large: Path) -> None:
    size, shortage = object_store(spec(large), free=36 * GIB)
    assert 15 * GIB < size < 36 * GIB - 2 * 8 * 10**9
    assert shortage is not None
    assert "36.0 GiB free" in shortage
    assert "mount -o remount,size=46G /dev/shm" in shortage


def test_a_model_that_can_not_be_read_is_left_to_whoever_loads_it(tmp_path: Path) -> None:
    assert object_store(spec(tmp_path / "missing"), free=GIB)[1] is None
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    assert bucket_bytes(tmp_path, DType.FLOAT32, 1) == 0
