"""Canaries are graded beside the samples of a job, and change nothing of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from longboat_crds.model import ModelSpec
from longboat_runtime.data.prompts import load_tokenizer
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.metrics.record import read_records
from longboat_runtime.reward.protocol import LEAST_URGENT
from longboat_runtime.samples import SampleId
from tests.driver.fakes import Site, make_spec
from tests.driver.runs import history
from tests.support.tiny_model import build_tiny_model

CANARY = {"right": "3", "wrong": "{{ wrong }}", "every_steps": 2}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = build_tiny_model(tmp_path_factory.mktemp("model"))
    return load_tokenizer(ModelSpec(path=str(path)))


def site(root: Path, tokenizer: Any, wrong: str = "1", **spec: Any) -> Site:
    canary = {**CANARY, "wrong": wrong}
    made = Site(root, make_spec(reward={"canary": canary}, **spec))
    made.tokenizer = tokenizer
    return made


def of_canaries(samples: Any) -> list[SampleId]:
    return sorted(sample for sample in samples if sample.epoch < 0)


async def test_they_are_graded_before_the_first_step_and_from_time_to_time(tmp_path: Path, tokenizer: Any) -> None:
    job = site(tmp_path / "with", tokenizer, steps=4)
    driver = job.driver()
    assert await driver.run() is RunOutcome.DONE
    graded = of_canaries(job.rewards.graded)
    assert {sample.epoch for sample in graded} >= {-1, -3}, "with the first round, and with the one after two steps"
    assert {job.rewards.asked[sample] for sample in graded} == {LEAST_URGENT}
    assert not of_canaries(job.store.samples)
    assert job.broker.status.problem is None


async def test_the_job_is_the_same_without_them(tmp_path: Path, tokenizer: Any) -> None:
    runs = []
    for name, given in (("with", tokenizer), ("without", None)):
        job = site(tmp_path / name, given, steps=4)
        assert await job.driver().run() is RunOutcome.DONE
        trained = [request.samples for request in job.trainer.requests]
        names = [sorted(record.metrics) for record in read_records(job.root)]
        runs.append((trained, names, sorted(map(str, map(type, history(job))))))
    assert runs[0] == runs[1]


async def test_no_round_waits_for_them(tmp_path: Path, tokenizer: Any) -> None:
    job = site(tmp_path, tokenizer, steps=4)
    driver = job.driver()
    job.rewards.held = {
        SampleId(epoch, row, 1, index) for epoch in range(-6, 0) for row in range(100) for index in range(4)
    }
    assert await driver.run() is RunOutcome.DONE
    assert len(job.trainer.requests) == 4
    assert not of_canaries(job.rewards.graded)


@pytest.mark.parametrize(
    ("wrong", "seen"), [("3", "a wrong response got at least as much"), ("{{ answer }}", "'wrong' fails for")]
)
async def test_a_reward_that_can_not_be_trusted_is_reported(
    tmp_path: Path, tokenizer: Any, wrong: str, seen: str
) -> None:
    job = site(tmp_path, tokenizer, wrong, steps=4)
    driver = job.driver()
    assert await driver.run() is RunOutcome.DONE
    problem = job.broker.status.problem
    assert (problem.reason, problem.field, problem.fatal) == ("RewardSuspect", "spec.rewards[0]", False)
    assert "Reward main can't be trusted" in problem.message
    assert seen in problem.message
