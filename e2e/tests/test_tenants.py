"""Jobs with accounts, users and claims as platforms want them, trained to the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e import small_job
from e2e.jobs import Job
from e2e.site import Site
from e2e.volumes import apply
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

NewJob = Callable[[str], Job]
# As OpenShift's restricted-v2: users of pods are within the namespace's range, and set where a pod names none.
RANGE = (1000650000, 1000660000)


def short(runtime: str = "host", **changes: Any) -> dict[str, Any]:
    return small_job.spec(runtime, rounds={"steps": 2, "promptsPerRound": 4}, **changes)


def own_account(specs: dict[str, Any]) -> None:
    specs["driver"]["serviceAccountName"] = "trainers"


def test_two_drivers_with_an_account_that_the_template_brings_train_side_by_side(site: Site, new_job: NewJob) -> None:
    metadata = {"name": "trainers", "namespace": site.namespace}
    apply(site.cluster, [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}])
    runtime = site.apply_runtime("own-account", own_account)
    # Their names would have met up to 0.2.0.
    jobs = [new_job(name) for name in ("tenant", "tenant-reward")]
    for job in jobs:
        job.apply(short(runtime))
    for job in jobs:
        job.wait("the last step", job.has_succeeded)
        assert job.status()["training"]["incarnation"] == 1
        secret = f"secrets -l longboat.dev/job={job.name} -o name".split()
        eventually(lambda: site.cluster.kubectl("-n", site.namespace, "get", *secret), lambda names: not names)  # noqa: B023


@pytest.fixture
def user_range(site: Site) -> Iterator[None]:
    """Refuses pods of the runtime `platform-users` whose containers name a user out of the range."""
    containers = "variables.spec.containers + variables.spec.?initContainers.orValue([])"
    spec = {
        "matchConstraints": {
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
            ],
            "objectSelector": {"matchLabels": {"users": "platform"}},
        },
        "variables": [{"name": "spec", "expression": "object.spec"}],
        "validations": [
            {
                "expression": f"({containers}).all(c, c.?securityContext.?runAsUser.orValue({RANGE[0]}) in [{RANGE[0]}]) && "
                f"object.spec.?securityContext.?runAsUser.orValue({RANGE[0]}) == {RANGE[0]}",
                "message": f"runAsUser must be in {RANGE}",
            }
        ],
    }
    group = "admissionregistration.k8s.io/v1"
    policy = {
        "apiVersion": group,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "user-range"},
        "spec": spec,
    }
    bound = {"policyName": "user-range", "validationActions": ["Deny"]}
    binding = {**policy, "kind": "ValidatingAdmissionPolicyBinding", "spec": bound}
    apply(site.cluster, [policy, binding])
    yield
    site.cluster.kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", "user-range")


def test_a_job_trains_as_users_that_the_platform_gives(site: Site, new_job: NewJob, user_range: None) -> None:
    """Client-side apply, as Argo CD's, stores the template: it drops nulls, and keeps `userIds`."""
    name = site.apply_runtime("platform-users-base", lambda specs: None)
    made = json.loads(site.cluster.kubectl("get", "clusterrlruntime", name, "-o", "json"))
    made["metadata"] = {"name": "platform-users"}
    made["spec"] |= {"userIds": "Platform", "labels": {"users": "platform"}}
    # What the platform's admission would set.
    common = made["spec"].setdefault("common", {}).setdefault("template", {}).setdefault("spec", {})
    common["securityContext"] = {"runAsUser": RANGE[0], "runAsGroup": 0, "fsGroup": RANGE[0]}
    site.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(made))
    job = new_job("platform-users")
    job.apply(short("platform-users"))
    job.wait_for("Running")
    assert "run as one user" in job.condition("RuntimeResolved")["message"]
    job.wait("the last step", job.has_succeeded)


def test_a_job_that_is_created_anew_after_its_time_goes_on_from_its_predecessors_claim(
    site: Site, new_job: NewJob
) -> None:
    """Does what a GitOps tool does, whose manifest stays the same."""
    job = new_job("created-anew")
    spec = short(ttlSecondsAfterFinished=1)
    spec["checkpoint"] |= {"adopt": True, "everySteps": 1}
    job.apply(spec)
    eventually(lambda: not job.get())
    claim = ("-n", site.namespace, "get", "pvc", f"{job.name}-checkpoint", "-o", "jsonpath={.metadata.uid}")
    uid = site.cluster.kubectl(*claim)
    job.apply(spec | {"ttlSecondsAfterFinished": 3600})
    job.wait("the last step", job.has_succeeded)
    assert site.cluster.kubectl(*claim) == uid
    assert job.status()["checkpoint"]["step"] == 2
    assert job.step() == 2, "trains on"
