"""An operator on a machine whose clock is wrong, by the real plan on a real API server."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest

from longboat_operator.kube.client import MERGE_PATCH, KubeClient
from longboat_operator.kube.resources import POD, RL_JOB
from longboat_operator.kube.transport import Request
from tests.operator_shell.test_surroundings_live import Bench, bench, with_recorded_pods
from tests.support.waiting import eventually_async

__all__ = ["bench"]

pytestmark = pytest.mark.cluster

HOUR = timedelta(hours=1)
TRAINER = "x-trainer-0-a0"


def set_clock(monkeypatch: pytest.MonkeyPatch, ahead: timedelta) -> None:
    """Makes every module of the operator see another time."""

    class Wrong(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime.now(tz) + ahead

    for name, module in list(sys.modules.items()):
        if name.startswith("longboat_operator") and getattr(module, "datetime", None) is datetime:
            monkeypatch.setattr(module, "datetime", Wrong)


async def bind(admin: KubeClient, namespace: str, name: str) -> None:
    """Gives a pod a node, of which nobody hears: from now on it has its whole grace period to end."""
    target = {"apiVersion": "v1", "kind": "Node", "name": "nowhere"}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    path = POD.path(namespace, name, "binding")
    await admin._transport.send(Request("POST", path, "create", "pods/binding", {}, body))


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
async def test_a_pod_gets_its_whole_grace_period(
    bench: Bench, admin: KubeClient, monkeypatch: pytest.MonkeyPatch, ahead: timedelta
) -> None:
    set_clock(monkeypatch, ahead)
    async with bench.operator():
        await with_recorded_pods(bench)
        await bind(admin, bench.namespace, TRAINER)
        uid = (await bench.get(POD, TRAINER))["metadata"]["uid"]
        await admin.delete(POD, bench.namespace, TRAINER, uid, grace_seconds=1800)

        async def loss_is_recorded() -> bool:
            history = (await bench.get(RL_JOB, "x"))["status"].get("restartHistory") or ()
            return TRAINER in [record["pod"] for record in history]

        await eventually_async(loss_is_recorded)
        # Each answer to an edit comes from a later plan, which would delete the pod beside it.
        for replicas in (2, 3):
            await admin.patch(RL_JOB, bench.namespace, "x", {"spec": {"rollout": {"replicas": replicas}}}, MERGE_PATCH)
            await eventually_async(bench.has_pods("x", 3 + replicas))
        pods = await bench.all(POD)
        assert pods[TRAINER]["metadata"]["uid"] == uid
        assert pods[TRAINER]["metadata"]["deletionGracePeriodSeconds"] == 1800
        status = (await bench.get(RL_JOB, "x"))["status"]
        started = datetime.fromisoformat(status["startTime"])
        assert abs(started - datetime.now(UTC)) < HOUR / 2
