"""Measures what Longboat costs a cluster when nothing happens."""

import re
from datetime import datetime, timedelta
from operator import not_

import pytest

from e2e.installation import NAMESPACE as SYSTEM
from e2e.installation import operator_pods
from e2e.jobs import Job
from e2e.site import Site
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

WRITES = {"create", "apply", "patch", "update", "delete"}
# How long writes are counted, measured by the renewal times in the operator's Lease.
PERIOD = timedelta(minutes=1)
SERIES = re.compile(r"^longboat_api_requests_total\{(?P<labels>[^}]*)\} (?P<value>\S+)$", re.MULTILINE)


def writes(site: Site) -> dict[str, float]:
    """Counts the operator's writes by verb and resource, except the renewals of its own Lease."""
    (pod,) = operator_pods(site.cluster)
    text = site.cluster.kubectl("get", "--raw", f"/api/v1/namespaces/{SYSTEM}/pods/{pod}:8080/proxy/metrics")
    counted: dict[str, float] = {}
    for series in SERIES.finditer(text):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', series["labels"]))
        if labels["verb"] in WRITES and labels["resource"] != "leases":
            key = f"{labels['verb']} {labels['resource']}"
            counted[key] = counted.get(key, 0) + float(series["value"])
    assert counted, "the operator counts its writes"
    return counted


def renewed(site: Site) -> datetime:
    """Returns when the operator last renewed its Lease, by its own clock."""
    leases = site.cluster.api.get(f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases") or {}
    (lease,) = leases["items"]
    return datetime.fromisoformat(lease["spec"]["renewTime"])


def written_in_a_period(site: Site, running: Job) -> dict[str, float]:
    """Counts the operator's writes in a period in which the job makes steps."""
    before, begun, step = writes(site), renewed(site), running.step()
    running.wait("renewals of the Lease", lambda: renewed(site) - begun, lambda passed: passed >= PERIOD)
    running.wait_for_step(step + 1)
    return {key: count - before.get(key, 0) for key, count in writes(site).items() if count != before.get(key)}


def test_idle_operator_writes_nothing(site: Site, quickstart_job: Job, tail_batching_job: Job) -> None:
    """Neither a finished nor a running job makes the operator write.

    One minute without writes is enough: an operator that writes of its own accord does so in every minute. In some there is something to
    write: after a stall of seconds a node isn't ready, and its pods aren't either.
    """
    quickstart_job.wait_for("Succeeded")
    eventually(lambda: written_in_a_period(site, tail_batching_job), not_)
