"""What may be changed of a job, and when."""

from typing import Any

import pytest

from e2e.tests.api.objects import STARTED, Jobs, NewJob, Refused
from longboat_crds.fixed import FIXED, WHILE_SUSPENDED

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


CHANGES: dict[str, Any] = {
    "algorithm": {"groupSize": 4},
    "checkpoint.claimName": "other",
    "checkpoint.export": False,
    "checkpoint.resumeFrom": {"claimName": "other"},
    "checkpoint.volume": {"size": "1Gi"},
    "dataset.columns": {"prompt": "question"},
    "dataset.evaluation": {"files": {"paths": ["/data/test.jsonl"]}},
    "dataset.files": {"paths": ["/data/other.jsonl"]},
    "dataset.promptTemplate": "{{ prompt }}",
    "dataset.reasoningGym": {"task": "chain_sum"},
    "dataset.shuffle": False,
    "dataset.shuffleSeed": 1,
    "dataset.tooLongPrompts": "Skip",
    "model": {"path": "/models/other"},
    "rewardPool": {"replicas": 2},
    "rewards": [{"name": "other", "function": "rewards:other"}],
    "rollout.enforceEager": True,
    "rollout.enginesPerPod": 2,
    "rollout.kvCache": "64Mi",
    "rollout.maxSequences": 8,
    "rollout.sampling": {"maxTokens": 32},
    "rollout.tensorParallel": 2,
    "rounds.auditEvery": 3,
    "rounds.maxLengthBias": 0.1,
    "rounds.maxStaleness": 2,
    "rounds.policy": "TailBatching",
    "rounds.promptOvercommit": 1.5,
    "rounds.promptOvercommitMode": "Auto",
    "rounds.promptsPerRound": 4,
    "rounds.quotas": [{"domain": "math", "prompts": 5}, {"domain": "code", "prompts": 3}],
    "rounds.sampleOvercommit": 1.5,
    "rounds.seed": 1,
    "rounds.stageDeadlineSeconds": 60,
    "trainer.deterministic": False,
    "trainer.gradientCheckpointing": True,
    "trainer.maxSkippedSteps": 5,
    "trainer.maxTokensPerBin": 4096,
    "trainer.minibatches": 2,
    "trainer.optimizer": {"learningRate": 1e-4},
    "trainer.replicas": 2,
}


# What the job needs to have from the start for a change to be possible at all.
NEEDED: dict[str, dict[str, Any]] = {
    "rounds.auditEvery": {"spec.rounds.policy": "TailBatching"},
    "rounds.maxLengthBias": {"spec.rounds.policy": "TailBatching"},
    "rounds.quotas": {"spec.dataset.columns": {"domain": "topic"}},
}


def _patch(path: str, value: Any) -> dict[str, Any]:
    for key in reversed(["spec", *path.split(".")]):
        value = {key: value}
    return value


def test_a_change_is_tried_for_every_field_that_is_not_free() -> None:
    assert set(CHANGES) == {*FIXED, *WHILE_SUSPENDED}


@pytest.mark.parametrize("path", sorted(CHANGES))
def test_what_may_change_when(jobs: Jobs, new_job: NewJob, path: str) -> None:
    patch = _patch(path, CHANGES[path])
    if path == "dataset.reasoningGym":
        patch["spec"]["dataset"]["files"] = None
    if "Overcommit" in path:
        patch["spec"]["rounds"]["policy"] = "TailBatching"
    if path == "rounds.maxStaleness":
        patch["spec"]["rounds"]["policy"] = "BoundedAsync"
    base = NEEDED.get(path, {})
    before = new_job(base)
    jobs.merge(before, patch)  # not started

    running = new_job(base, name="running", status={"startTime": STARTED, "phase": "Running"})
    with pytest.raises(Refused) as caught:
        jobs.merge(running, patch)
    assert f"spec.{path}" in caught.value.fields
    assert caught.value.status == 422

    suspended = new_job(base, name="suspended", status={"startTime": STARTED, "phase": "Suspended"})
    if path in WHILE_SUSPENDED:
        jobs.merge(suspended, patch)
    else:
        with pytest.raises(Refused):
            jobs.merge(suspended, patch)


def test_what_is_free_stays_free(jobs: Jobs, new_job: NewJob) -> None:
    name = new_job(status={"startTime": STARTED, "phase": "Running"})
    free = {
        "suspend": True,
        "ttlSecondsAfterFinished": 60,
        "rounds": {"steps": 5},
        "rollout": {"replicas": 3},
        "runtimeRef": {"renewOnResume": True},
        "failurePolicy": {"maxDriverRestarts": 1},
        "checkpoint": {"everySteps": 1, "keep": 1, "graceSeconds": 1, "reclaimPolicy": "Delete"},
    }
    assert jobs.merge(name, {"spec": free})["spec"]["rounds"]["steps"] == 5


def test_steps_only_rise_and_only_before_the_end(jobs: Jobs, new_job: NewJob) -> None:
    name = new_job(status={"startTime": STARTED, "phase": "Running"})
    with pytest.raises(Refused) as caught:
        jobs.merge(name, {"spec": {"rounds": {"steps": 3}}})
    assert caught.value.fields == ["spec.rounds.steps"]
    jobs.merge(name, {"status": {"completionTime": STARTED}}, "status")
    with pytest.raises(Refused, match="can't be changed once the job has finished"):
        jobs.merge(name, {"spec": {"rounds": {"steps": 9}}})


def test_another_runtime_only_while_suspended_and_with_renewal(jobs: Jobs, new_job: NewJob) -> None:
    name = new_job(status={"startTime": STARTED, "phase": "Suspended"})
    other = {"spec": {"runtimeRef": {"name": "other"}}}
    with pytest.raises(Refused) as caught:
        jobs.merge(name, other)
    assert caught.value.fields == ["spec.runtimeRef.name"]
    jobs.merge(name, {"spec": {"runtimeRef": {"name": "other", "renewOnResume": True}}})
    jobs.merge(name, {"status": {"phase": "Running"}}, "status")
    with pytest.raises(Refused):
        jobs.merge(name, {"spec": {"runtimeRef": {"name": "third"}}})


def test_keys_without_a_schema_are_fixed_too(jobs: Jobs, new_job: NewJob) -> None:
    """CEL in the definition doesn't see that one unknown key was exchanged for another; a policy does."""
    task = {"reasoningGym": {"task": "chain_sum", "config": {"min_terms": 2}}}
    name = new_job({"spec.dataset": task}, status={"startTime": STARTED})
    with pytest.raises(Refused, match=r"spec\.dataset\.reasoningGym is fixed once the job has started"):
        jobs.merge(name, _patch("dataset.reasoningGym.config", {"min_terms": None, "max_terms": 2}))
