"""What `longboat run` runs, with everything real: Ray, vLLM, FSDP2, graders in their sandbox."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from longboat_crds.job import RLJobSpec
from longboat_runtime.checkpoint.layout import Position
from longboat_runtime.driver.broker import LocalBroker
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.main import Ending, drive
from longboat_runtime.eventlog import end_of, surviving
from longboat_runtime.metrics.record import read_records
from longboat_runtime.rounds import events
from longboat_runtime.sample_files.reading import read_file, read_files
from tests.support.tiny_model import CHAT_TEMPLATE, build_tiny_model
from tests.tracking.jobs import rows

STEPS, HALF = 4, 2
REWARD = """
def letters(sample):
    return sum(letter == sample.ground_truth for letter in sample.text) / max(len(sample.text), 1)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    build_tiny_model(folder / "model", max_length=64)
    letters = [{"prompt": letter, "answer": letter} for letter in "abcdefgh"]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in letters))
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in letters[:2]))
    (folder / "rewards.py").write_text(REWARD)
    return folder


def job(data: Path, root: Path, incarnation: int, **checkpoint: Any) -> Job:
    spec: dict[str, Any] = {
        "runtimeRef": {"name": "local"},
        "model": {"path": str(data / "model"), "dtype": "Float32"},
        "dataset": {
            "files": {"paths": [str(data / "train.jsonl")]},
            "columns": {"prompt": "prompt", "groundTruth": "answer"},
            "evaluation": {"files": {"paths": [str(data / "test.jsonl")]}, "everySteps": STEPS},
        },
        "algorithm": {"name": "DrGRPO", "groupSize": 4},
        "rounds": {"steps": STEPS, "promptsPerRound": 4},
        "checkpoint": {"everySteps": HALF, "keep": 2, **checkpoint},
        "samples": {"everySteps": HALF, "keep": 2},
        "tracking": {"weightsAndBiases": {"project": "letters", "mode": "Offline"}},
        "rollout": {"sampling": {"maxTokens": 8}, "kvCache": "16Mi", "enforceEager": True},
        "rewards": [{"name": "letters", "function": f"{data}/rewards.py:letters"}],
        "trainer": {"optimizer": {"learningRate": 1e-3}, "maxTokensPerBin": 256},
    }
    return Job("letters", RLJobSpec.model_validate(spec), root, incarnation)


async def run(job_: Job, sockets: Mapping[str, Path]) -> None:
    assert await drive(job_, LocalBroker(job_.incarnation), sockets=sockets) == (Ending.DONE, None)


async def test_a_resumed_run_is_the_run_that_never_stopped(
    data: Path, sockets: Mapping[str, Path], tmp_path: Path
) -> None:
    """A run in one go, and one that resumes from a checkpoint after half of its steps, are the same bit for bit."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    await run(job(data, whole, 1), sockets)
    shutil.copytree(whole, broken)
    shutil.rmtree(broken / "export")
    shutil.rmtree(broken / Position(1, STEPS).path)
    await run(job(data, broken, 2), sockets)
    assert (broken / Position(2, STEPS).path).is_dir()
    assert batches(broken, 2) == batches(whole, 1)
    ours, theirs = load_file(broken / "export" / "model.safetensors"), load_file(whole / "export" / "model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    before = load_file(data / "model" / "model.safetensors")
    assert not all(torch.equal(ours[name], before[name]) for name in ours), "something was learned"
    records = {record.step: record.metrics for record in read_records(broken)}
    assert list(records) == list(range(STEPS + 1))
    assert "val/score/mean" in records[0]
    assert all(record["sync/parity_max"] < 1e-4 for record in records.values())
    assert records[STEPS]["reward/grades/scored"] == 16
    responses = {step: [sample["response"] for sample in read_file(path)] for step, path in read_files(broken).items()}
    assert {step: len(texts) for step, texts in responses.items()} == {HALF: 16, STEPS: 16}
    assert responses == {
        step: [sample["response"] for sample in read_file(path)] for step, path in read_files(whole).items()
    }
    tracked = {row["_step"]: row for row in rows(broken)}
    assert list(tracked) == list(range(STEPS + 1))
    assert {step for step, row in tracked.items() if "samples/nrows" in row} >= {HALF, STEPS}


def other_model(data: Path) -> None:
    """Of the same shape: config, headers and sizes are the same."""
    build_tiny_model(data / "other", max_length=64, seed=1)
    shutil.copy(data / "other" / "model.safetensors", data / "model" / "model.safetensors")


def other_template(data: Path) -> None:
    (data / "model" / "chat_template.jinja").write_text(CHAT_TEMPLATE + "!")


def other_row(data: Path) -> None:
    lines = (data / "train.jsonl").read_text().splitlines()
    (data / "train.jsonl").write_text("\n".join([*lines[:-1], json.dumps({"prompt": "h", "answer": "a"})]))


def other_reward(data: Path) -> None:
    (data / "rewards.py").write_text(REWARD + "# as before\n")


CHANGES: dict[Callable[[Path], None], str] = {
    other_model: "Model: weights in Float32 (by tensor) has changed",
    other_template: "Tokenizer: chat_template.jinja has changed",
    other_row: "Data: row 7 has changed",
    other_reward: "Rewards: rewards.py of reward letters has changed",
}


async def test_a_run_resumes_with_changed_inputs_only_if_they_are_accepted(
    data: Path, sockets: Mapping[str, Path], tmp_path: Path
) -> None:
    """Each change is named, and nothing is trained; all are taken knowingly, and each is said."""
    root, changed = tmp_path / "run", tmp_path / "changed"
    await run(job(data, root, 1), sockets)
    shutil.rmtree(root / Position(1, STEPS).path)
    shutil.copytree(data, changed)
    for change in CHANGES:
        change(changed)
    ending, problem = await drive(job(changed, root, 2), LocalBroker(2), sockets=sockets)
    assert (ending, problem and problem.reason) == (Ending.FAILED, "CheckpointMismatch")
    assert problem
    named = " ".join(f"{text}." for text in CHANGES.values())
    assert problem.message == f"The checkpoint of step {HALF} was made with other inputs. {named}"
    assert not (root / Position(2, STEPS).path).exists()
    broker = LocalBroker(3)
    accepted = job(changed, root, 3, acceptChanges=["Model", "Tokenizer", "Data", "Rewards"])
    assert await drive(accepted, broker, sockets=sockets) == (Ending.DONE, None)
    training = broker.status.training
    assert training
    assert training.resumed
    assert training.resumed.accepted == [*CHANGES.values()]


def batches(root: Path, incarnation: int) -> list[tuple]:
    """What was trained in each step: samples with tokens and rewards."""
    seen: dict = {}
    found = []
    for event in surviving(root, end_of(root, incarnation)):
        match event.body:
            case events.Generated(sample=sample, tokens=tokens):
                seen[sample] = (sample, tokens)
            case events.Graded(sample=sample, score=score):
                seen[sample] += (score,)
            case events.StepCommitted(step=step, samples=samples):
                found.append((step, [seen[sample] for sample in samples]))
    return found
