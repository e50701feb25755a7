from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from longboat_crds.dataset import EvaluationSpec, FilesSource
from longboat_crds.reward_kinds import RewardRole
from longboat_crds.rewards import RewardSpec
from longboat_crds.rollout import RepetitionSpec, SamplingSpec
from longboat_runtime.driver.evaluation import (
    EvaluatedSample,
    evaluation_id,
    evaluation_metrics,
    held_out_sampling,
    is_due,
)
from longboat_runtime.driver.job import Job
from longboat_runtime.reward.tasks import TaskRewards
from longboat_runtime.samples import FinishedSample, FinishReason, Grade, GradeKind, PromptId, Repetition, Row, SampleId
from tests.driver.fakes import Site, make_spec

EXACT = [RewardSpec(name="exact", function="m:f")]


def evaluated(score: float, kind: GradeKind = GradeKind.SCORED, domain: str = "", tokens: int = 4) -> EvaluatedSample:
    reason = FinishReason.LENGTH if tokens == 8 else FinishReason.STOP
    finished = FinishedSample(SampleId(-1, 0, 0, 0), 2, tokens, reason, (), "engine-0", evaluation=True)
    return EvaluatedSample(domain, finished, Grade(kind, score, 0.1, parts={"exact": score}))


def test_scores_accuracy_and_lengths() -> None:
    metrics = evaluation_metrics([evaluated(1.0), evaluated(0.5, tokens=8)], EXACT, TaskRewards(EXACT))
    assert metrics["val/score/mean"] == metrics["val/reward/exact/mean"] == 0.75
    assert metrics["val/accuracy/mean"] == 0.5
    assert metrics["val/response_length/mean"] == 6
    assert metrics["val/response_length/clip_ratio"] == 0.5


def test_a_timeout_scores_as_the_worst_answer_and_a_grader_error_is_left_out() -> None:
    late = EvaluatedSample("", evaluated(0.0).finished, Grade(GradeKind.TIMEOUT, 0.0, 1.0, parts={"exact": None}))
    metrics = evaluation_metrics(
        [evaluated(1.0), evaluated(-1.0), late, evaluated(0.0, GradeKind.GRADER_ERROR)], EXACT, TaskRewards(EXACT)
    )
    assert metrics["val/score/mean"] == -1 / 3
    assert metrics["val/reward/exact/mean"] == 0.0
    assert (metrics["val/grades/timeout"], metrics["val/grades/grader_error"]) == (1, 1)


def test_accuracy_is_of_the_task_and_withheld_once_its_full_score_is_unclear() -> None:
    rewards = [
        RewardSpec(name="exact", function="m:f"),
        RewardSpec(name="short", function="m:f", role=RewardRole.SHAPING),
    ]
    tasks = TaskRewards(rewards)
    wrong = EvaluatedSample(
        "", evaluated(0.0).finished, Grade(GradeKind.SCORED, 2.0, 0.1, parts={"exact": 0.0, "short": 2.0})
    )
    metrics = evaluation_metrics([evaluated(1.0), wrong], rewards, tasks)
    assert metrics["val/accuracy/mean"] == metrics["val/solved/exact/mean"] == 0.5
    metrics = evaluation_metrics([evaluated(5.0), evaluated(1.0)], rewards, tasks)
    assert metrics["val/score/mean"] == 3.0
    assert not [name for name in metrics if "accuracy" in name or "pass@" in name or "solved" in name]


def test_nothing_graded_gives_no_score() -> None:
    assert "val/score/mean" not in evaluation_metrics(
        [evaluated(0.0, GradeKind.GRADER_ERROR)], EXACT, TaskRewards(EXACT)
    )


def test_each_domain_has_its_own_metrics() -> None:
    metrics = evaluation_metrics(
        [evaluated(1.0, domain="code"), evaluated(0.0, domain="math")], EXACT, TaskRewards(EXACT)
    )
    assert (metrics["val/score/code/mean"], metrics["val/score/math/mean"], metrics["val/score/mean"]) == (1, 0, 0.5)


# No value here is a default.
TRAINING = SamplingSpec(
    max_tokens=7,
    temperature=0.9,
    stop=["."],
    stop_token_ids=[3],
    include_stop=True,
    repetition=RepetitionSpec(pattern_tokens=3, count=4),
)


def test_held_out_samples_are_drawn_like_training_samples_except_for_what_the_evaluation_sets() -> None:
    job = Job("job", make_spec(sampling=TRAINING.model_dump(exclude_unset=True)), Path(), 1)
    source = FilesSource(paths=["/t"])
    spec = EvaluationSpec(files=source, max_tokens=9, temperature=0.6, top_p=0.95, top_k=20, min_p=0.05)
    drawn = asdict(held_out_sampling(spec, job.sampling))
    assert drawn == {
        "max_tokens": 9,
        "temperature": 0.6,
        "top_p": 0.95,
        "top_k": 20,
        "min_p": 0.05,
        "stop": (".",),
        "stop_token_ids": (3,),
        "include_stop": True,
        "repetition": {"pattern_tokens": 3, "count": 4},
    }
    assert drawn.keys() == SamplingSpec.model_fields.keys() | {"top_k", "min_p"}, (
        "give a new field a value here and above"
    )
    plain = held_out_sampling(EvaluationSpec(files=source), job.sampling)
    assert (plain.max_tokens, plain.temperature, plain.top_k, plain.min_p) == (7, 0.0, 0, 0.0)


async def test_a_loop_ends_in_held_out_samples_as_in_training(tmp_path: Path) -> None:
    spec = make_spec(steps=1, evaluation={}, sampling={"repetition": {"pattern_tokens": 3, "count": 4}})
    site = Site(tmp_path, spec)
    await site.driver().run()
    assert {request.sampling.repetition for request in site.fleet.requests} == {Repetition(3, 4)}
    assert any(request.evaluation for request in site.fleet.requests)


@pytest.mark.parametrize(("step", "due"), [(0, True), (3, False), (4, True), (10, True)])
def test_evaluation_is_due_before_the_first_every_n_and_after_the_last_step(step: int, due: bool) -> None:
    assert is_due(step, steps=10, every=4) is due


def test_ids_differ_from_those_of_training_samples_and_other_evaluations() -> None:
    row = Row(PromptId(0, 3), "text", (1,))
    names = {evaluation_id(step, row, index) for step in (0, 10) for index in (0, 1)}
    assert len(names) == 4
    assert all(name.epoch < 0 for name in names)
