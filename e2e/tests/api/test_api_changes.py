"""Tests which changes of a job the API server accepts, and when."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from e2e.cluster.cluster import Cluster
from e2e.tests.api.objects import STARTED, Jobs, NewJob, Refused
from longboat_crds.fixed import WHILE_SUSPENDED
from tests.crds.manifests import changed
from tests.crds.rule_cases import BEFORE_CHANGE, CHANGES, WITH_CHANGE
from tests.support.waiting import eventually

pytestmark = pytest.mark.cluster


def _patch(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Makes a merge patch that sets values at dotted paths."""
    patch: dict[str, Any] = {}
    for path, value in changes.items():
        *way, last = path.split(".")
        at = patch
        for key in way:
            at = at.setdefault(key, {})
        at[last] = value
    return patch


@pytest.mark.parametrize("path", sorted(CHANGES))
def test_what_may_change_when(jobs: Jobs, new_job: NewJob, path: str) -> None:
    patch = _patch({f"spec.{path}": CHANGES[path]} | WITH_CHANGE.get(path, {}))
    base = BEFORE_CHANGE.get(path, {})
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


@pytest.mark.parametrize(
    ("field", "stored", "other", "cure"),
    [
        ("spec.rounds.promptOvercommitMode", "Auto", "Fixed", "longboat simulate"),
        ("spec.rollouts", {"everySteps": 1}, {"everySteps": 2}, "samples"),
        ("spec.rewardPool", {"replicas": 3, "gradersPerPod": 2}, {"replicas": 2}, "rewardPools"),
    ],
)
def test_a_stored_job_with_a_removed_field_keeps_running_and_its_field_can_only_be_dropped(
    server: Cluster, jobs: Jobs, new_job: NewJob, field: str, stored: Any, other: Any, cure: str
) -> None:
    """Stores the job under a CRD without the rule, like that of an earlier release."""
    keys = field.split(".")[1:]
    crd = json.loads(server.kubectl("get", "crd", "rljobs.longboat.dev", "-o", "json"))
    part = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec"
    for key in keys:
        part, path = part["properties"][key], f"{path}/properties/{key}"

    def refused() -> bool:
        try:
            jobs.create(changed({field: stored}), dry_run=True)
        except Refused as refusal:
            return refusal.fields == [field] and cure in refusal.message
        return False

    assert refused()
    rule = {"path": f"{path}/x-kubernetes-validations", "value": part["x-kubernetes-validations"]}
    patch = ("patch", "crd", "rljobs.longboat.dev", "--type=json", "-p")
    server.kubectl(*patch, json.dumps([{"op": "remove", "path": rule["path"]}]))
    try:
        eventually(lambda: not refused())
        name = new_job({field: stored}, status={"startTime": STARTED, "phase": "Running"})
    finally:
        server.kubectl(*patch, json.dumps([{"op": "add", **rule}]))
    eventually(refused)
    jobs.merge(name, {"spec": {"suspend": True}})
    jobs.merge(name, {"status": {"phase": "Suspending"}}, "status")
    with pytest.raises(Refused):
        jobs.merge(name, _patch({field: other}))
    spec = jobs.merge(name, _patch({field: None}))["spec"]
    for key in keys[:-1]:
        spec = spec[key]
    assert keys[-1] not in spec


@pytest.mark.parametrize(("stored", "dropped"), [(False, True), (True, False)])
def test_a_running_job_may_drop_what_was_a_default(jobs: Jobs, new_job: NewJob, *, stored: bool, dropped: bool) -> None:
    """The API server of a release filled it in, and a PUT of the manifest doesn't have it."""
    field = "spec.trainer.gradientCheckpointing"
    running = new_job({field: stored}, status={"startTime": STARTED, "phase": "Running"})
    if not dropped:
        with pytest.raises(Refused, match="only while the job is suspended"):
            jobs.merge(running, _patch({field: None}))
        return
    assert "gradientCheckpointing" not in jobs.merge(running, _patch({field: None}))["spec"]["trainer"]
    for value in (False, True):
        with pytest.raises(Refused, match="only while the job is suspended"):
            jobs.merge(running, _patch({field: value}))


def test_a_stored_job_keeps_a_pool_of_a_name_that_is_refused_today(
    server: Cluster, jobs: Jobs, new_job: NewJob
) -> None:
    """Stores the job under a CRD without the rule, like that of release 0.2.0."""
    pools = [{"name": "driver"}]
    crd = json.loads(server.kubectl("get", "crd", "rljobs.longboat.dev", "-o", "json"))
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    path = (
        "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/rewardPools/items/x-kubernetes-validations"
    )
    rules = spec["properties"]["rewardPools"]["items"]["x-kubernetes-validations"]

    def refused() -> bool:
        try:
            jobs.create(changed({"spec.rewardPools": pools}), dry_run=True)
        except Refused as refusal:
            return refusal.fields == ["spec.rewardPools[0].name"]
        return False

    assert refused()
    patch = ("patch", "crd", "rljobs.longboat.dev", "--type=json", "-p")
    server.kubectl(*patch, json.dumps([{"op": "remove", "path": path}]))
    try:
        eventually(lambda: not refused())
        name = new_job({"spec.rewardPools": pools}, status={"startTime": STARTED, "phase": "Running"})
    finally:
        server.kubectl(*patch, json.dumps([{"op": "add", "path": path, "value": rules}]))
    eventually(refused)
    jobs.merge(name, {"spec": {"suspend": True}})
    jobs.merge(name, {"status": {"phase": "Suspending"}}, "status")


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
        jobs.merge(name, _patch({"spec.dataset.reasoningGym.config": {"min_terms": None, "max_terms": 2}}))
