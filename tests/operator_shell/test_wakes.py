"""Which changes of a job cost a plan."""

from __future__ import annotations

import copy
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from longboat_operator.watch.trim import wakes

JOB: dict[str, Any] = {
    "apiVersion": "longboat.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"namespace": "a", "name": "x", "uid": "1", "resourceVersion": "7", "generation": 1},
    "spec": {"suspend": False},
    "status": {
        "phase": "Running",
        "training": {"incarnation": 1, "state": "Running", "step": 4, "reward": "0.5"},
        "demand": {"rolloutReplicas": 2},
        "checkpoint": {"incarnation": 1, "step": 2},
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    job = copy.deepcopy(JOB)
    *parents, last = path.split(".")
    target = job
    for parent in parents:
        target = target.setdefault(parent, {})
    target[last] = value
    return job


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.resourceVersion", "8"),
        ("metadata.managedFields", [{"manager": "longboat-driver"}]),
        ("status.training.step", 5),
        ("status.training.reward", "0.6"),
        ("status.training.updated", "2026-11-21T10:00:00Z"),
        ("status.training.tokensPerSecond", 100),
    ],
)
def test_progress_wakes_nobody(path: str, value: Any) -> None:
    assert not wakes(JOB, changed(path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("status.training.state", "Succeeded"),
        ("status.training.incarnation", 2),
        ("status.demand.rolloutReplicas", 3),
        ("status.demand.incarnationRequest", "token"),
        ("status.checkpoint.step", 4),
        ("status.problem", {"reason": "OutOfMemory", "message": "too long"}),
        ("status.phase", "Failed"),
        ("spec.suspend", True),
        ("metadata.deletionTimestamp", "2026-11-21T10:00:00Z"),
        ("metadata.generation", 2),
        ("metadata.uid", "2"),
    ],
)
def test_what_plans_look_at_wakes(path: str, value: Any) -> None:
    assert wakes(JOB, changed(path, value))


def test_coming_and_going_wakes() -> None:
    assert wakes(None, JOB)
    assert wakes(JOB, None)
    assert not wakes(None, None)


def test_a_first_report_without_a_state_is_progress() -> None:
    bare = {key: value for key, value in JOB.items() if key != "status"}
    assert not wakes(bare, {**bare, "status": {"training": {"step": 1}}})


@given(st.dictionaries(st.sampled_from(["step", "reward", "stage", "parity"]), st.integers()))
def test_no_report_of_progress_wakes(training: dict[str, int]) -> None:
    kept = {key: JOB["status"]["training"][key] for key in ("state", "incarnation")}
    assert not wakes(JOB, changed("status.training", {**training, **kept}))
