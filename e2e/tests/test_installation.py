"""Longboat as Helm installs it."""

import json

import pytest

from e2e import installation
from e2e.installation import NAMESPACE as SYSTEM
from e2e.site import Site

pytestmark = pytest.mark.cluster


def test_helm_installs_an_operator_that_leads(site: Site) -> None:
    (release,) = json.loads(installation.helm(site.cluster.kubeconfig, "list", "--namespace", SYSTEM, "-o", "json"))
    assert (release["name"], release["status"]) == (installation.RELEASE, "deployed")
    installation.await_operator(site.cluster)
    (pod,) = installation.operator_pods(site.cluster)
    leases = site.cluster.api.get(f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases") or {}
    (lease,) = leases["items"]
    assert pod in lease["spec"]["holderIdentity"]
    assert "promptsPerRound" in site.cluster.kubectl("explain", "rljob.spec.rounds")
