"""A driver asks for rollout pods, and gives back those that the grant takes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from longboat_crds.status import Demand, LeavingPod, RolloutDemand, RolloutGrant
from longboat_runtime.driver.broker import LocalBroker, granted
from longboat_runtime.driver.status import DriverStatus
from longboat_runtime.rollout.load import PodLoad
from longboat_runtime.rollout.protocol import FleetState
from longboat_runtime.rounds import measurements
from tests.driver.fakes import Site, make_spec
from tests.driver.runs import held, history


def demand(site: Site) -> RolloutDemand:
    found = site.broker.status.demand
    assert found is not None
    assert found.rollout is not None
    return found.rollout


def leaving(*pods: str) -> RolloutGrant:
    named = [LeavingPod(pod=pod, deadline="2026-01-01T00:00:00Z") for pod in pods]
    return RolloutGrant(answers=1, replicas=1, leaving=named or None)


async def test_an_edit_is_asked_for_while_the_round_runs(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec())
    async with held(site) as until:
        assert (demand(site).incarnation, demand(site).number, demand(site).replicas) == (1, 1, 1)
        site.broker.edit(rollout={"replicas": 3})
        await until(lambda: demand(site).replicas == 3)
        assert demand(site).number == 2
        assert demand(site).reason == "rollout.replicas is 3"


async def test_pods_that_the_grant_takes_back_are_drained_and_named(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec())
    async with held(site) as until:
        site.fleet.pod_loads = {"pod-0": PodLoad(1, 4), "pod-1": PodLoad(1, 2)}
        site.fleet.set_state(FleetState(pods=("pod-0", "pod-1")))
        await until(lambda: demand(site).give_first == ["pod-1", "pod-0"])
        assert demand(site).number == 1, "whoever is there, as many are asked for"
        site.broker.grant(leaving("pod-1", "never-came"))
        await until(lambda: site.fleet.released[-1:] == [["pod-1", "never-came"]])
        site.fleet.set_state(replace(site.fleet.state, drained=("never-came", "pod-1")))
        await until(lambda: demand(site).drained == ["never-came", "pod-1"])
        assert demand(site).number == 2
        site.fleet.set_state(replace(site.fleet.state, pods=("pod-0",)))
        site.broker.grant(leaving())
        await until(lambda: site.fleet.released[-1:] == [[]])
        site.fleet.set_state(FleetState(pods=("pod-0",)))
        await until(lambda: demand(site).drained is None)
    drained = [body for body in history(site) if isinstance(body, measurements.PodDrained)]
    assert [body.pod for body in drained] == ["pod-1"], "one that never came had nothing to drain"
    assert drained[0].seconds >= 0


async def test_without_kubernetes_what_is_asked_for_is_granted_within_bounds() -> None:
    spec = make_spec().rollout.model_copy(update={"replicas": 4, "min_replicas": 2})
    asked = [RolloutDemand(incarnation=1, number=number, replicas=number) for number in range(1, 7)]
    assert [granted(one, spec).replicas for one in asked] == [2, 2, 3, 4, 4, 4]
    broker = LocalBroker(1, rollout=spec)
    waiting = asyncio.create_task(broker.granted(None))
    await asyncio.sleep(0)
    broker.publish(DriverStatus())
    await asyncio.sleep(0)
    assert not waiting.done()
    broker.publish(DriverStatus(demand=Demand(rollout=asked[2])))
    assert await waiting == RolloutGrant(answers=3, replicas=3)
