from __future__ import annotations

import pytest

from longboat_crds.rewards import RewardSpec
from longboat_runtime.driver.evaluation import EvaluatedSample, evaluation_id, evaluation_metrics, is_due
from longboat_runtime.samples import FinishedSample, FinishReason, Grade, GradeKind, PromptId, Row, SampleId

EXACT = [RewardSpec(name="exact", function="m:f")]


def evaluated(score: float, kind: GradeKind = GradeKind.SCORED, domain: str = "", tokens: int = 4) -> EvaluatedSample:
    reason = FinishReason.LENGTH if tokens == 8 else FinishReason.STOP
    finished = FinishedSample(SampleId(-1, 0, 0, 0), 2, tokens, reason, (), "engine-0", evaluation=True)
    return EvaluatedSample(domain, finished, Grade(kind, score, 0.1, parts={"exact": score}))


def test_scores_accuracy_and_lengths() -> None:
    metrics = evaluation_metrics([evaluated(1.0), evaluated(0.5, tokens=8)], EXACT)
    assert metrics["val/score/mean"] == metrics["val/reward/exact/mean"] == 0.75
    assert metrics["val/accuracy/mean"] == 0.5
    assert metrics["val/response_length/mean"] == 6
    assert metrics["val/response_length/clip_ratio"] == 0.5


def test_a_timeout_is_worth_the_worst_answer_and_a_grader_error_is_left_out() -> None:
    late = EvaluatedSample("", evaluated(0.0).finished, Grade(GradeKind.TIMEOUT, 0.0, 1.0, parts={"exact": None}))
    metrics = evaluation_metrics([evaluated(1.0), evaluated(-1.0), late, evaluated(0.0, GradeKind.GRADER_ERROR)], EXACT)
    assert metrics["val/score/mean"] == -1 / 3
    assert metrics["val/reward/exact/mean"] == 0.0
    assert (metrics["val/grades/timeout"], metrics["val/grades/grader_error"]) == (1, 1)


def test_nothing_graded_gives_no_score() -> None:
    assert "val/score/mean" not in evaluation_metrics([evaluated(0.0, GradeKind.GRADER_ERROR)], EXACT)


def test_domains_apart() -> None:
    metrics = evaluation_metrics([evaluated(1.0, domain="code"), evaluated(0.0, domain="math")], EXACT)
    assert (metrics["val/score/code/mean"], metrics["val/score/math/mean"], metrics["val/score/mean"]) == (1, 0, 0.5)


@pytest.mark.parametrize(("step", "due"), [(0, True), (3, False), (4, True), (10, True)])
def test_before_the_first_every_so_many_and_after_the_last(step: int, due: bool) -> None:
    assert is_due(step, steps=10, every=4) is due


def test_names_are_those_of_no_training_sample_and_no_other_evaluation() -> None:
    row = Row(PromptId(0, 3), "text", (1,))
    names = {evaluation_id(step, row, index) for step in (0, 10) for index in (0, 1)}
    assert len(names) == 4
    assert all(name.epoch < 0 for name in names)
