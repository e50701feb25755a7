"""Tests what remains of a job that is deleted."""

from operator import not_

import pytest

from e2e.jobs import Job

pytestmark = pytest.mark.cluster


def test_deleted_job_leaves_only_its_claim(tail_batching_job: Job) -> None:
    job = tail_batching_job
    job.delete()
    job.wait("pods are gone", job.pods, not_)
    kinds = "pods,services,serviceaccounts,roles,rolebindings,secrets,networkpolicies,controllerrevisions"
    of_job = ("-l", f"longboat.dev/job={job.name}", "-o", "name")
    job.wait("children collected", lambda: job.cluster.kubectl("-n", job.namespace, "get", kinds, *of_job), not_)
    claims = job.cluster.kubectl("-n", job.namespace, "get", "pvc", *of_job)
    assert claims.split() == [f"persistentvolumeclaim/{job.name}-checkpoint"]
