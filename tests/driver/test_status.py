from __future__ import annotations

import pytest

from longboat_crds.status import CheckpointStatus, Problem, Training, TrainingState
from longboat_runtime.driver.status import DriverStatus, due


def status(**training: object) -> DriverStatus:
    values = {"incarnation": 1, "state": TrainingState.RUNNING, "step": 3, "steps": 5, "stage": "generate", **training}
    return DriverStatus(Training.model_validate(values))


def test_the_first_status_is_written_at_once() -> None:
    assert due(None, status(), 0.0) == 0.0


@pytest.mark.parametrize("change", [{"step": 4}, {"state": "Suspended"}, {"incarnation": 2}])
def test_progress_is_written_at_once(change: dict) -> None:
    assert due(status(), status(**change), 0.0) == 0.0


def test_a_problem_and_a_checkpoint_are_written_at_once() -> None:
    training = status().training
    assert due(status(), DriverStatus(training, problem=Problem(reason="StageStuck", message="m")), 0.0) == 0.0
    assert due(status(), DriverStatus(training, checkpoint=CheckpointStatus(incarnation=1, step=3)), 0.0) == 0.0


def test_a_stage_waits_for_its_minute() -> None:
    assert due(status(), status(stage="train"), 12.0) == 48.0
    assert due(status(), status(stage="train"), 61.0) == 0.0


def test_nothing_new_is_never_written() -> None:
    assert due(status(updated="2026-01-01T00:00:00Z"), status(updated="2026-01-02T00:00:00Z"), 1e6) is None


def test_absent_fields_are_left_out() -> None:
    assert status().to_json().keys() == {"training"}


def test_what_another_version_wrote_is_absent() -> None:
    stored = {"training": {"incarnation": 1, "mood": "good"}, "checkpoint": {"incarnation": 1, "step": 3}}
    assert DriverStatus.from_json(stored) == DriverStatus(checkpoint=CheckpointStatus(incarnation=1, step=3))
    assert DriverStatus.from_json(status().to_json()) == status()
