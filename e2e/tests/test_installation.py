"""Longboat as Helm installs it."""

import json

import pytest

from e2e import installation
from e2e.installation import NAMESPACE as SYSTEM
from e2e.site import Site
from tests.support.waiting import eventually

pytestmark = pytest.mark.cluster


def test_helm_installs_an_operator_that_leads(site: Site) -> None:
    (release,) = json.loads(installation.helm(site.cluster.kubeconfig, "list", "--namespace", SYSTEM, "-o", "json"))
    assert (release["name"], release["status"]) == (installation.RELEASE, "deployed")
    installation.await_operator(site.cluster)
    (pod,) = installation.operator_pods(site.cluster)

    def holders() -> list[str]:
        leases = site.cluster.api.get(f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases") or {}
        return [lease["spec"].get("holderIdentity") or "" for lease in leases["items"]]

    # Standbys are ready too, so the rollout may be complete before one leads.
    eventually(holders, lambda names: len(names) == 1 and pod in names[0])
    assert "promptsPerRound" in site.cluster.kubectl("explain", "rljob.spec.rounds")
