"""What is left of exports, whenever a process dies, is whole; the oldest go."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from bench.memory.allocations import Allocations
from longboat_runtime.checkpoint import export
from longboat_runtime.checkpoint.exports import Exports
from longboat_runtime.checkpoint.layout import surplus_exports
from tests.support.tiny_model import build_tiny_experts
from tests.trainer.trainer_world import make_spec, only_rank

SCRIPT = "tests.checkpoint.export_crash_points"


@given(st.sets(st.integers(1, 30), min_size=1), st.integers(1, 5), st.data())
def test_the_newest_exports_up_to_the_one_just_written_stay(steps: set[int], keep: int, data: st.DataObject) -> None:
    written = data.draw(st.sampled_from(sorted(steps)))
    left = steps - set(surplus_exports(steps, keep, written))
    assert written in left
    assert left >= {step for step in steps if step > written}
    earlier = sorted(step for step in steps if step <= written)
    assert [step for step in sorted(left) if step <= written] == earlier[-keep:]


def test_a_later_incarnation_keeps_what_an_earlier_one_would_remove_or_finish(tmp_path: Path) -> None:
    for incarnation in (1, 2):
        (tmp_path / "incarnations" / str(incarnation)).mkdir(parents=True)
    for name in ("step-00000010", "step-00000020", "step-00000030", ".step-00000040.2.partial"):
        (tmp_path / "exports" / name).mkdir(parents=True)
    earlier = Exports(tmp_path, 1, 1)
    earlier.tidy()
    earlier.prune(30)
    assert len([*(tmp_path / "exports").iterdir()]) == 4
    Exports(tmp_path, 1, 2).prune(30)
    assert sorted(path.name for path in (tmp_path / "exports").iterdir()) == [
        ".step-00000040.2.partial",
        "step-00000030",
    ]


def test_an_export_is_whole_or_not_there_wherever_the_process_or_the_machine_dies(tmp_path: Path) -> None:
    result = subprocess.run([sys.executable, "-m", SCRIPT, tmp_path], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    for power in (False, True):
        for step, before in ((30, 30.0), (40, None)):
            points = [line for line in lines if (line["power"], line["step"]) == (power, step)]
            assert len(points) > 12
            assert [line["died"] for line in points] == [True] * (len(points) - 1) + [False]
            name = f"step-000000{step}"
            for line in points:
                assert None not in line["left"].values(), "nothing that looks whole is half there"
                assert line["left"].get(name) in (before, None, -1.0)
                assert line["hidden"] == []
            assert points[0]["left"] == {"step-00000020": 20.0, "step-00000030": 30.0}
            assert points[-1]["left"] == ({"step-00000020": 20.0} if step == 30 else {"step-00000030": 30.0}) | {
                name: -1.0
            }


def test_the_weights_of_one_file_are_in_memory_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "FILE_BYTES", 10_000)
    sizes = {"small": 500, "large": 5000, **{f"layer{number}": 1000 for number in range(9)}, "last": 2500}
    weights = {name: torch.rand(size) for name, size in sizes.items()}
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "config.json").write_text("{}")
    with Allocations() as allocations:
        gathered = ((name, weight.clone()) for name, weight in weights.items())
        export.export(tmp_path / "source", gathered, "float32", tmp_path / "export", tmp_path / ".export.1.partial")
    assert allocations.peak <= 10_000 + 2 * 20_000, "one file, the weight that is gathered next and its copy"
    files = sorted((tmp_path / "export").glob("*.safetensors"))
    assert [file.name for file in files] == [f"model-0000{number}-of-00008.safetensors" for number in range(1, 9)]
    assert all(file.stat().st_mode & 0o444 == 0o444 for file in files)
    index = json.loads((tmp_path / "export" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(weight.nbytes for weight in weights.values())
    assert index["weight_map"].keys() == weights.keys()
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / "export" / file)[name], weights[name])


def test_a_model_in_several_files_is_loaded_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The experts of a layer, which are parts of one tensor, are in different files."""
    monkeypatch.setattr(export, "FILE_BYTES", 20_000)
    source, directory = build_tiny_experts(tmp_path / "model"), tmp_path / "export"
    with only_rank(make_spec(source)) as rank:
        export.export(source, rank.weights(), "float32", directory, tmp_path / ".export.1.partial")
        weights = dict(rank.model.named_parameters())
        exported = AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
        assert len([*directory.glob("*.safetensors")]) > 3
        read = dict(exported.named_parameters())
        assert read.keys() == weights.keys()
        assert [name for name, weight in weights.items() if not torch.equal(read[name], weight)] == []
