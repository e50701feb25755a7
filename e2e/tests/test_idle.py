"""What Longboat costs a cluster when nothing happens."""

import re
import time

import pytest

from e2e.installation import NAMESPACE as SYSTEM
from e2e.installation import operator_pods
from e2e.jobs import Job
from e2e.site import Site

pytestmark = pytest.mark.cluster

WRITES = {"create", "apply", "patch", "update", "delete"}
# Seconds without a write after which the operator has written what it had to.
SETTLED = 10
# How many minutes are tried.
MINUTES = 3
SERIES = re.compile(r"^longboat_api_requests_total\{(?P<labels>[^}]*)\} (?P<value>\S+)$", re.MULTILINE)


def writes(site: Site) -> dict[str, float]:
    """Writes the operator has made, by verb and resource, but for the renewals of its own Lease."""
    (pod,) = operator_pods(site.cluster)
    text = site.cluster.kubectl("get", "--raw", f"/api/v1/namespaces/{SYSTEM}/pods/{pod}:8080/proxy/metrics")
    counted: dict[str, float] = {}
    for series in SERIES.finditer(text):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', series["labels"]))
        if labels["verb"] in WRITES and labels["resource"] != "leases":
            key = f"{labels['verb']} {labels['resource']}"
            counted[key] = counted.get(key, 0) + float(series["value"])
    return counted


def settled(site: Site) -> dict[str, float]:
    """The writes, once there were no more of them for so long."""
    before, now = {"": 0.0}, writes(site)
    while before != now:
        time.sleep(SETTLED)
        before, now = now, writes(site)
    return now


def written_in_a_minute(site: Site, running: Job) -> dict[str, float]:
    """Writes of sixty seconds in which the job makes steps, after the operator has written what it had to."""
    before = settled(site)
    assert before, "the operator counts its writes"
    step = running.step()
    time.sleep(60 - SETTLED)
    running.wait_for_step(step + 1)
    return {key: count - before.get(key, 0) for key, count in writes(site).items() if count != before.get(key)}


def test_idle_operator_writes_nothing(site: Site, finished: Job, survivor: Job) -> None:
    """One finished and one running job.

    There may be something to write in a minute: a node that stalls for seconds isn't ready, and its pods aren't either. But what an
    operator writes of its own accord, it writes in every minute.
    """
    assert finished.status()["phase"] == "Succeeded"
    minutes: list[dict[str, float]] = []
    while len(minutes) < MINUTES and all(minutes):
        minutes.append(written_in_a_minute(site, survivor))
    assert not minutes[-1], minutes
