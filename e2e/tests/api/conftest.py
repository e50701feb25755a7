"""A cluster with the API and nobody who acts on it."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from e2e import installation
from e2e.cluster.cluster import Cluster
from e2e.tests.api.objects import NAMESPACE, STARTED, Jobs, NewJob, Refused
from tests.crds.manifests import MINIMAL, changed


@pytest.fixture(scope="package")
def server() -> Iterator[Cluster]:
    """A cluster of its own, with the chart but without an operator, which would take the jobs for real ones."""
    name = "api-tests"
    Cluster.down(name)
    try:
        cluster = Cluster.up(name)
        installation.install(
            cluster.kubeconfig, "longboat-operator:none", "replicas=0", "runtimes.cpu.image=longboat:1"
        )
        cluster.kubectl("create", "namespace", NAMESPACE)
        _await_policies(Jobs(cluster, NAMESPACE))
        yield cluster
    finally:
        Cluster.down(name)


def _await_policies(jobs: Jobs) -> None:
    """A policy takes effect some moments after it was created."""
    jobs.create(changed({"metadata.name": "probe", "spec.rewards.0.parameters": {"a": 1}}))
    jobs.merge("probe", {"status": {"startTime": STARTED}}, "status")
    deadline = time.monotonic() + 300
    renamed = {"a": None, "b": 1}
    while time.monotonic() < deadline:
        try:
            jobs.merge("probe", {"spec": {"rewards": [{**MINIMAL["spec"]["rewards"][0], "parameters": renamed}]}})
        except Refused:
            return
        renamed = {key: None if value else 1 for key, value in renamed.items()}
        time.sleep(0.1)
    pytest.fail("the admission policies have no effect")


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
    """A namespace that enforces Pod Security `restricted`."""
    name = "restricted"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    server.kubectl("create", "-f", "-", stdin=json.dumps(body))
    deadline = time.monotonic() + 300  # the account is made by a controller
    while "default" not in server.kubectl("-n", name, "get", "serviceaccounts", "-o", "name"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    yield name
    server.kubectl("delete", "namespace", name)
