"""A cluster with the API and nobody who acts on it."""

import json
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest

from e2e import installation
from e2e.cluster.cluster import Cluster
from e2e.tests.api.objects import NAMESPACE, OPERATOR, STARTED, Jobs, NewJob, Refused, may
from tests.crds.manifests import MINIMAL, changed
from tests.support.waiting import eventually


@pytest.fixture(scope="package")
def server() -> Iterator[Cluster]:
    """Yields a cluster of these tests' own, with the chart but without an operator, which would take the jobs for real ones."""
    name = "api-tests"
    Cluster.down(name)
    try:
        cluster = Cluster.up(name)
        installation.install(
            cluster.kubeconfig, "longboat-operator:none", "replicas=0", "runtimes.cpu.image=longboat-runtime:1"
        )
        cluster.kubectl("create", "namespace", NAMESPACE)
        _await_policies(Jobs(cluster, NAMESPACE))
        eventually(lambda: may(cluster, OPERATOR, "create", "pods", "-n", NAMESPACE))
        yield cluster
    finally:
        Cluster.down(name)


def _await_policies(jobs: Jobs) -> None:
    """Waits until one of the policies refuses what it should: they take effect some moments after they were created."""
    jobs.create(changed({"metadata.name": "probe", "spec.rewards.0.parameters": {"a": 1}}))
    jobs.merge("probe", {"status": {"startTime": STARTED}}, "status")
    renamed = cycle([{"a": None, "b": 1}, {"a": 1, "b": None}])

    def refused() -> bool:
        reward = {**MINIMAL["spec"]["rewards"][0], "parameters": next(renamed)}
        try:
            jobs.merge("probe", {"spec": {"rewards": [reward]}})
        except Refused:
            return True
        return False

    eventually(refused)


@pytest.fixture
def jobs(server: Cluster) -> Jobs:
    return Jobs(server, NAMESPACE)


@pytest.fixture
def new_job(jobs: Jobs) -> Iterator[NewJob]:
    """Creates jobs from changes to the minimal one, and deletes them after the test."""
    names: list[str] = []

    def create(changes: dict[str, Any] | None = None, status: dict[str, Any] | None = None, name: str = "job") -> str:
        jobs.create(changed({"metadata.name": name, **(changes or {})}))
        names.append(name)
        if status:
            jobs.merge(name, {"status": status}, "status")
        return name

    yield create
    for name in names:
        jobs.delete(name)


@pytest.fixture
def restricted(server: Cluster) -> Iterator[str]:
    """Yields the name of a namespace that enforces Pod Security `restricted`, and deletes it in the end."""
    name = "restricted"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    server.kubectl("create", "-f", "-", stdin=json.dumps(body))
    # A controller makes the account.
    eventually(
        lambda: server.kubectl("-n", name, "get", "serviceaccounts", "-o", "name"), lambda names: "default" in names
    )
    yield name
    server.kubectl("delete", "namespace", name)
