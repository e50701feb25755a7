from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.status import CheckpointStatus, Demand, Problem, RewardDemand, RolloutDemand, Training, TrainingState
from longboat_runtime.driver.status import DEMAND_INTERVAL, DriverStatus, asks_anew, due


def status(**training: object) -> DriverStatus:
    values = {"incarnation": 1, "state": TrainingState.RUNNING, "step": 3, "steps": 5, "stage": "generate", **training}
    return DriverStatus(Training.model_validate(values))


def test_the_first_status_is_written_at_once() -> None:
    assert due(None, status(), 0.0, 1e9) == 0.0


@pytest.mark.parametrize("change", [{"step": 4}, {"state": "Suspended"}, {"incarnation": 2}])
def test_progress_is_written_at_once(change: dict) -> None:
    assert due(status(), status(**change), 0.0, 1e9) == 0.0


def test_a_problem_and_a_checkpoint_are_written_at_once() -> None:
    training = status().training
    assert due(status(), DriverStatus(training, problem=Problem(reason="StageStuck", message="m")), 0.0, 1e9) == 0.0
    assert due(status(), DriverStatus(training, checkpoint=CheckpointStatus(incarnation=1, step=3)), 0.0, 1e9) == 0.0


def test_a_stage_waits_for_its_minute() -> None:
    assert due(status(), status(stage="train"), 12.0, 1e9) == 48.0
    assert due(status(), status(stage="train"), 61.0, 1e9) == 0.0


def test_nothing_new_is_never_written() -> None:
    assert due(status(updated="2026-01-01T00:00:00Z"), status(updated="2026-01-02T00:00:00Z"), 1e6, 1e9) is None


def test_absent_fields_are_left_out() -> None:
    assert status().to_json().keys() == {"training"}


def test_what_this_version_does_not_know_is_left_out() -> None:
    training = {"incarnation": 1, "state": "Pondering", "step": 7, "mood": "good"}
    stored = {"training": training, "checkpoint": {"incarnation": 1, "pace": 3}}
    expected = Training(incarnation=1, state=TrainingState.RUNNING, step=7)
    assert DriverStatus.from_json(stored) == DriverStatus(training=expected)
    assert DriverStatus.from_json(status().to_json()) == status()


def test_a_status_that_was_restored_from_a_backup_is_recognized() -> None:
    now = {**status().to_json(), "phase": "Running"}
    assert status().is_in(now)
    assert not status(step=4).is_in(now)
    assert not status().is_in({**now, "problem": {"reason": "StageStuck", "message": "m"}})
    assert not status().is_in({})


def asking(number: int, give_first: tuple[str, ...] = (), replicas: int = 1) -> DriverStatus:
    rollout = RolloutDemand(incarnation=1, number=number, replicas=replicas, give_first=list(give_first) or None)
    return replace(status(), demand=Demand(rollout=rollout))


def test_the_first_change_of_the_demand_is_written_at_once_and_further_ones_every_two_seconds() -> None:
    assert due(status(), asking(1), 0.5, 1e9) == 0.0
    assert due(asking(1), asking(2), 0.5, 0.5) == 1.5
    assert due(asking(1), asking(3), 2.0, 2.0) == 0.0
    assert due(asking(1), asking(2), 59.5, 0.5) == 0.5, "it goes with what is written anyway"
    assert due(asking(1), replace(asking(2), training=status(step=4).training), 0.1, 0.1) == 0.0


def test_another_division_of_cpus_is_a_change_of_the_demand() -> None:
    one, other = (
        replace(status(), demand=Demand(reward=RewardDemand(incarnation=1, number=number))) for number in (1, 2)
    )
    assert due(status(), one, 0.5, 1e9) == 0.0
    assert due(one, other, 0.5, 0.5) == 1.5
    assert asks_anew(one, other)
    assert not asks_anew(one, one)


def test_another_order_of_pods_is_no_reason_to_ask_again() -> None:
    assert due(asking(1, ("a", "b")), asking(1, ("b", "a")), 10.0, 10.0) == 50.0
    assert not asks_anew(asking(1, ("a", "b")), asking(1, ("b", "a")))


@given(st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(0, 3)), max_size=40))
def test_demands_are_written_at_most_every_two_seconds_and_the_last_one_always(
    changes: list[tuple[float, int]],
) -> None:
    """A writer that does as `due` says, while the demand changes: after each pause by so many numbers."""
    now, written_at, asked_at, number = 0.0, 0.0, float("-inf"), 1
    stored = asking(1)
    writes: list[float] = []

    for pause, more in [*changes, (10.0, 0)]:
        wait = due(stored, asking(number), now - written_at, now - asked_at)
        if wait is not None and wait <= pause:
            asked_at = written_at = now + wait
            writes.append(asked_at)
            stored = asking(number)
        now += pause
        number += more
    assert stored == asking(number)
    assert all(later - earlier >= DEMAND_INTERVAL - 1e-9 for earlier, later in itertools.pairwise(writes))
