"""Whole jobs of models unlike each other; tests/rollout/conformance/test_architectures.py has trainer and engine of many more."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from longboat_crds.job import RLJobSpec
from longboat_runtime.driver.broker import LocalBroker
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.main import Ending, drive
from longboat_runtime.metrics.record import read_records
from tests.support.architectures import tiny_config
from tests.support.tiny_model import save_random_model

# Positions that are learned and transposed weights; experts, of which the engine packs several into one tensor.
FAMILIES = ("gpt2", "qwen2_moe")
# Of which hardly any two responses have the same, so that every group teaches something.
REWARD = """
def digits(sample):
    return sum(sample.text.encode()) % 97 / 97
"""


def job(folder: Path, model: Path) -> Job:
    """Two steps of eight responses."""
    rows = [{"prompt": letter * 4} for letter in "abcd"]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rewards.py").write_text(REWARD)
    spec = {
        "runtimeRef": {"name": "local"},
        "model": {"path": str(model), "dtype": "Float32"},
        "dataset": {"files": {"paths": [f"{folder}/train.jsonl"]}},
        "algorithm": {"name": "DrGRPO", "groupSize": 4},
        "rounds": {"steps": 2, "promptsPerRound": 2},
        "rollout": {"sampling": {"maxTokens": 16}, "kvCache": "16Mi", "enforceEager": True},
        "rewards": [{"name": "digits", "function": f"{folder}/rewards.py:digits"}],
        "trainer": {"optimizer": {"learningRate": 1e-3}, "maxTokensPerBin": 128},
    }
    return Job("tiny", RLJobSpec.model_validate(spec), folder / "run", 1)


@pytest.mark.extended
@pytest.mark.parametrize("architecture", FAMILIES)
async def test_two_steps_train_it_and_engines_have_the_trainers_log_probs(
    architecture: str, tmp_path: Path, sockets: Mapping[str, Path]
) -> None:
    model = save_random_model(AutoModelForCausalLM.from_config, tiny_config(architecture), tmp_path / "model")
    assert await drive(job(tmp_path, model), LocalBroker(1), sockets=sockets) == (Ending.DONE, None)
    records = {record.step: record.metrics for record in read_records(tmp_path / "run")}
    assert list(records) == [0, 1, 2]
    assert all(metrics["sync/parity_max"] < 1e-4 for metrics in records.values())
    assert all(records[step]["training/rollout_probs_diff_max"] < 1e-4 for step in (1, 2))
    before, after = load_file(model / "model.safetensors"), load_file(tmp_path / "run/export/model.safetensors")
    assert before.keys() == after.keys()
    assert not all(torch.equal(before[name], after[name]) for name in before), "something was learned"
