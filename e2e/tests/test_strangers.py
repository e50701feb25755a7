"""Objects of others stay theirs, whatever a job is called; a person is told what is in the way, and the cure."""

import copy
from collections.abc import Callable
from functools import partial
from operator import eq, not_
from typing import Any

import pytest

from e2e import small_job
from e2e.jobs import Job
from e2e.site import Site
from e2e.volumes import apply

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

PATHS = {"ServiceAccount": "serviceaccounts", "PersistentVolumeClaim": "persistentvolumeclaims"}


def account(site: Site) -> dict[str, Any]:
    """Returns the manifest of an account such as Spark's driver runs under, whose pods get its token."""
    metadata = {"name": "spark-driver", "namespace": site.namespace, "labels": {"app": "spark"}}
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata, "automountServiceAccountToken": True}


def claim(site: Site) -> dict[str, Any]:
    """Returns the manifest of a claim of a class without volumes, which therefore stays unbound."""
    metadata = {"name": "spark-checkpoint", "namespace": site.namespace, "labels": {"app": "spark"}}
    resources = {"requests": {"storage": "1Gi"}}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": resources, "storageClassName": "none"}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def stored(site: Site, body: dict[str, Any]) -> dict[str, Any]:
    path = f"/api/v1/namespaces/{site.namespace}/{PATHS[body['kind']]}/{body['metadata']['name']}"
    return site.cluster.api.get(path) or {}


@pytest.mark.parametrize(
    ("stranger", "cure"),
    [
        (account, "delete it, or create the job under another name (metadata.name)"),
        (claim, "set spec.checkpoint.claimName: spark-checkpoint"),
    ],
    ids=["account", "claim"],
)
def test_a_strangers_object_is_in_the_way_and_stays_as_it_is(
    site: Site, new_job: Callable[[str], Job], stranger: Callable[[Site], dict[str, Any]], cure: str
) -> None:
    body = stranger(site)
    apply(site.cluster, [body])
    before = stored(site, body)
    try:
        job = new_job("spark")
        job.apply(small_job.spec())
        job.wait("reason NameTaken", lambda: job.condition("Scheduled").get("reason"), partial(eq, "NameTaken"))
        assert job.status()["phase"] == "Pending"
        assert job.status()["reason"] == "NameTaken"
        # What has the name is looked up after the refusal, which is told at once.
        message = job.wait("the cure", lambda: job.condition("Scheduled")["message"], lambda text: cure in text)
        assert f"{body['kind']} {body['metadata']['name']} exists and is not this job's" in message
        assert not job.pods()
        assert stored(site, body) == before
        job.delete()
        # The garbage collector works through a probe that came later: it would have had the stranger's object before.
        owner = {"apiVersion": "longboat.dev/v1alpha1", "kind": "RLJob", "name": "spark", "uid": "of-a-deleted-job"}
        probe = copy.deepcopy(account(site))
        probe["metadata"] |= {"name": "probe", "ownerReferences": [owner]}
        apply(site.cluster, [probe])
        job.wait("the garbage collector has run", lambda: stored(site, probe), not_)
        assert stored(site, body) == before
    finally:
        site.cluster.kubectl("-n", site.namespace, "delete", body["kind"], body["metadata"]["name"], "--wait=false")


def test_the_job_starts_when_the_name_is_free(held_up: dict[str, Job]) -> None:
    freed = held_up["freed"]
    freed.wait("pods are made", freed.pods)


def test_a_volume_that_can_not_be_mounted_is_named(held_up: dict[str, Job]) -> None:
    """The pod's status says nothing of it, its Events do."""
    unmounted = held_up["unmounted"]
    unready = unmounted.wait(
        "reason VolumeNotReady",
        lambda: unmounted.condition("RolesReady"),
        lambda condition: condition.get("reason") == "VolumeNotReady",
    )
    message = unready["message"]
    assert "FailedMount" in message
    assert 'configmap "nowhere" not found' in message
