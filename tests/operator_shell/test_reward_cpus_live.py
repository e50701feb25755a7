"""CPUs that move between reward pods, by the real plans on a real API server; the test plays the driver's and the node's part."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from e2e.jobs import Job
from e2e.reward_cpus import watching
from longboat_operator.kube.client import MERGE_PATCH, KubeClient
from longboat_operator.kube.errors import ConflictError, InvalidError
from longboat_operator.kube.resources import POD, RL_JOB, RL_RUNTIME, Resource
from longboat_operator.model import LABEL_ROLE, JobKey, Observed, ResizePod
from longboat_operator.watch.cache import Cache
from longboat_operator.writes import Writes
from tests.operator_shell.small_plan import manifest
from tests.operator_shell.test_grants_live import Driver, bench
from tests.operator_shell.test_surroundings_live import Bench
from tests.support.waiting import eventually_async

__all__ = ["bench"]

pytestmark = pytest.mark.cluster

NODE = Resource("Node", "nodes", namespaced=False)
CODE, MATH = "x-reward-code-0-a0", "x-reward-math-0-a0"


async def submit(bench: Bench, runtime: str = "nowhere", **pool: Any) -> None:
    """Job `x`, whose two pools of one pod each share two CPUs."""
    body = manifest(bench.namespace, "x")
    rewards = [{"name": name, "function": "/data/reward.py:reward", "pool": name} for name in ("code", "math")]
    body["spec"] |= {
        "runtimeRef": {"kind": "RLRuntime", "name": runtime},
        "rewards": rewards,
        "rewardPools": [{"name": "code", **pool}, {"name": "math"}],
        "rewardCpu": {"total": "2"},
    }
    await bench.admin.create(RL_JOB, body)


async def asked(bench: Bench) -> dict[str, str]:
    """CPUs that reward pods' graders ask for, by pod."""
    found = {}
    for name, pod in (await bench.all(POD)).items():
        if pod["metadata"]["labels"].get(LABEL_ROLE) == "reward":
            resources = _graders(pod)["resources"]
            assert resources["limits"] == resources["requests"]
            found[name] = resources["limits"]["cpu"]
    return found


async def carry_out(bench: Bench, *names: str) -> None:
    """Says what the node says of pods whose CPUs are as they ask for."""
    for name in names:
        cpu = (await asked(bench))[name]
        await _say(bench, name, in_force=cpu, allocated=cpu)


async def _say(bench: Bench, name: str, in_force: str, allocated: str, *resize: dict[str, str]) -> None:
    """Says what the node says of a pod, as of what it asks for now."""
    time = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    conditions = [{"type": "Ready", "status": "True"}, *({**each, "status": "True"} for each in resize)]
    told = {
        "name": "graders", "ready": True, "restartCount": 0, "image": "i", "imageID": "i",
        "resources": {"limits": {"cpu": in_force}, "requests": {"cpu": in_force}}, "allocatedResources": {"cpu": allocated},
    }  # fmt: skip
    status = {"phase": "Running", "conditions": [each | time for each in conditions], "containerStatuses": [told]}
    status["observedGeneration"] = (await bench.get(POD, name))["metadata"]["generation"]
    await bench.admin.patch(POD, bench.namespace, name, {"status": status}, MERGE_PATCH, subresource="status")


def _graders(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in pod["spec"]["containers"] if each["name"] == "graders")
    return found


async def is_asked(bench: Bench, cpus: dict[str, str]) -> bool:
    return await asked(bench) == cpus


async def test_cpus_move_by_resizes_that_the_server_takes_and_the_column_shows_them(bench: Bench) -> None:
    driver = Driver(bench)
    async with bench.operator():
        await submit(bench)
        await eventually_async(lambda: is_asked(bench, {CODE: "1", MATH: "1"}))
        await carry_out(bench, CODE, MATH)
        await driver.start()
        ask = [{"name": "code", "cpu": "1500m", "reason": "tests wait"}, {"name": "math", "cpu": "500m"}]
        await driver.ask_cpus(number=1, pools=ask)
        await eventually_async(lambda: is_asked(bench, {CODE: "1", MATH: "500m"}))
    async with bench.operator():
        await carry_out(bench, MATH)
        await eventually_async(lambda: is_asked(bench, {CODE: "1500m", MATH: "500m"}))
        await carry_out(bench, CODE)

        async def done() -> bool:
            cpus = (await bench.get(RL_JOB, "x"))["status"]["rewardCpu"]
            return [move["outcome"] for move in cpus.get("moves", ())] == ["Done"] and "resizes" not in cpus

        await eventually_async(done)
    pods = await bench.all(POD)
    assert {pods[name]["metadata"]["generation"] for name in (CODE, MATH)} == {2}, "one resize each"
    table = bench.cluster.kubectl("-n", bench.namespace, "get", "rljobs", "x")
    assert "REWARD-CPU" in table
    assert "2/2" in table
    described = bench.cluster.kubectl("-n", bench.namespace, "describe", "rljob", "x")
    assert "CPUsMoved" in described
    assert "tests wait" in described


@pytest.fixture
async def fake_node(bench: Bench) -> AsyncIterator[str]:
    """A node of four CPUs without a kubelet; pods of runtime template `fake` stay on it although it doesn't answer."""
    template = {"spec": {"nodeSelector": {"test.longboat.dev/none": "none"}, "tolerations": [{"operator": "Exists"}]}}
    await bench.put(RL_RUNTIME, "fake", spec={"image": "localhost/none:1", "common": {"template": template}})
    name = f"fake-{bench.namespace}"
    made = await bench.admin.create(NODE, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    has = {"cpu": "4", "memory": "8Gi", "pods": "10"}
    status = {"status": {"capacity": has, "allocatable": has}}
    await bench.admin.patch(NODE, "", name, status, MERGE_PATCH, subresource="status")
    yield name
    await bench.admin.delete(NODE, "", name, made["metadata"]["uid"])


async def bind(bench: Bench, node: str, *names: str) -> None:
    """Gives pods to the node, as the scheduler does."""
    for name in names:
        metadata = {"namespace": bench.namespace, "name": name}
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        await asyncio.to_thread(bench.cluster.kubectl, "create", "-f", "-", stdin=json.dumps(body))


@pytest.mark.parametrize(
    ("outcome", "allocated", "condition"),
    [
        ("Infeasible", "1", {"type": "PodResizePending", "reason": "Infeasible", "message": "static CPU manager"}),
        pytest.param(
            "Error",
            "1500m",
            {"type": "PodResizeInProgress", "reason": "Error", "message": "the cgroup can't be written"},
            marks=pytest.mark.extended,
        ),
    ],
)
async def test_cpus_that_a_node_can_not_give_go_back_and_the_loss_is_shown_and_remembered(
    bench: Bench, fake_node: str, outcome: str, allocated: str, condition: dict[str, str]
) -> None:
    driver = Driver(bench)
    with watching(Job(bench.cluster, bench.namespace, "x")) as seen:
        async with bench.operator():
            await submit(bench, "fake")
            await eventually_async(lambda: is_asked(bench, {CODE: "1", MATH: "1"}))
            await bind(bench, fake_node, CODE, MATH)
            await carry_out(bench, CODE, MATH)
            await driver.start()
            await driver.ask_cpus(number=1, pools=[{"name": "code", "cpu": "1500m"}, {"name": "math", "cpu": "500m"}])
            await eventually_async(lambda: is_asked(bench, {CODE: "1", MATH: "500m"}))
            await carry_out(bench, MATH)
            await eventually_async(lambda: is_asked(bench, {CODE: "1500m", MATH: "500m"}))
            await _say(bench, CODE, "1", allocated, condition)
            await eventually_async(lambda: is_asked(bench, {CODE: "1", MATH: "500m"}))
        async with bench.operator():
            await carry_out(bench, CODE)
            await eventually_async(lambda: is_asked(bench, {CODE: "1", MATH: "1"}))
            await carry_out(bench, MATH)

            async def at_rest() -> Any:
                found = (await bench.get(RL_JOB, "x"))["status"]["rewardCpu"]
                return "resizes" not in found and found["moves"][-1]["outcome"] == "Incomplete" and found

            cpus = await eventually_async(at_rest)
    (refused,) = cpus["refusals"]
    assert refused.pop("until")
    assert refused == {
        "pod": CODE, "node": fake_node, "cpu": "1500m", "outcome": outcome, "message": condition["message"],
        "sources": [{"name": "math", "cpu": "500m"}], "times": 1,
    }  # fmt: skip
    assert cpus["used"] == "2"
    assert max(seen.sums) == 2000
    described = bench.cluster.kubectl("-n", bench.namespace, "describe", "rljob", "x")
    assert f"can't have 1500m CPUs ({outcome}: {condition['message']}) and keeps what it has" in described
    assert "CPUsNotMoved" in described


async def test_cpus_that_the_server_knows_the_node_has_not_are_refused_in_its_words(
    bench: Bench, fake_node: str
) -> None:
    driver = Driver(bench)
    small = {"cpu": "1200m", "memory": "8Gi", "pods": "10"}
    await bench.admin.patch(NODE, "", fake_node, {"status": {"allocatable": small}}, MERGE_PATCH, subresource="status")
    with watching(Job(bench.cluster, bench.namespace, "x")) as seen:
        async with bench.operator():
            await submit(bench, "fake")
            await eventually_async(lambda: is_asked(bench, {CODE: "1", MATH: "1"}))
            await bind(bench, fake_node, CODE, MATH)
            await carry_out(bench, CODE, MATH)
            await driver.start()
            await driver.ask_cpus(number=1, pools=[{"name": "code", "cpu": "1500m"}, {"name": "math", "cpu": "500m"}])
            await eventually_async(lambda: is_asked(bench, {CODE: "1", MATH: "500m"}))
            await carry_out(bench, MATH)
            await eventually_async(lambda: is_asked(bench, {CODE: "1", MATH: "1"}))
            await carry_out(bench, MATH)
    (refused,) = (await bench.get(RL_JOB, "x"))["status"]["rewardCpu"]["refusals"]
    assert (refused["pod"], refused["node"], refused["outcome"]) == (CODE, fake_node, "Refused")
    assert "enough allocatable resources" in refused["message"]
    assert max(seen.sums) == 2000


async def test_cpus_that_a_limit_range_forbids_are_refused_in_its_words(bench: Bench) -> None:
    driver = Driver(bench)
    async with bench.operator():
        await submit(bench)
        await eventually_async(lambda: is_asked(bench, {CODE: "1", MATH: "1"}))
        await carry_out(bench, CODE, MATH)
        limits = [{"type": "Container", "max": {"cpu": "1200m"}}]
        metadata = {"namespace": bench.namespace, "name": "small"}
        body = {"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": limits}}
        await asyncio.to_thread(bench.cluster.kubectl, "create", "-f", "-", stdin=json.dumps(body))
        await driver.start()
        await driver.ask_cpus(number=1, pools=[{"name": "code", "cpu": "1500m"}, {"name": "math", "cpu": "500m"}])
        await eventually_async(lambda: is_asked(bench, {CODE: "1", MATH: "500m"}))
        await carry_out(bench, MATH)
        await eventually_async(lambda: is_asked(bench, {CODE: "1", MATH: "1"}))
    (refused,) = (await bench.get(RL_JOB, "x"))["status"]["rewardCpu"]["refusals"]
    assert refused["outcome"] == "Refused"
    assert "maximum cpu usage per Container is 1200m" in refused["message"]


async def test_pods_that_wait_for_a_node_are_resized_at_once(bench: Bench) -> None:
    driver = Driver(bench)
    async with bench.operator():
        await submit(bench)
        await eventually_async(lambda: is_asked(bench, {CODE: "1", MATH: "1"}))
        await driver.start()
        await driver.ask_cpus(number=1, pools=[{"name": "code", "cpu": "1500m"}, {"name": "math", "cpu": "500m"}])
        await eventually_async(lambda: is_asked(bench, {CODE: "1500m", MATH: "500m"}))
    assert not [pod for pod in (await bench.all(POD)).values() if pod["spec"].get("nodeName")]


async def test_a_resize_of_a_pod_that_has_changed_is_refused(bench: Bench, admin: KubeClient) -> None:
    async with bench.operator():
        await submit(bench)
        await eventually_async(lambda: is_asked(bench, {CODE: "1", MATH: "1"}))
    old = await bench.get(POD, CODE)
    await carry_out(bench, CODE)
    events: Any = None  # no event is written
    writes = Writes(admin, Cache(), events, Observed(JobKey(bench.namespace, "x"), await bench.get(RL_JOB, "x")))
    version = old["metadata"]["resourceVersion"]
    with pytest.raises(ConflictError):
        await writes.execute(ResizePod(CODE, "graders", "2", "2", version))
    assert (await asked(bench))[CODE] == "1"
    newest = (await bench.get(POD, CODE))["metadata"]["resourceVersion"]
    assert await writes.execute(ResizePod(CODE, "graders", "1500m", "1500m", newest)) == "done"
    assert (await asked(bench))[CODE] == "1500m"


@pytest.mark.parametrize(
    ("pool", "field", "cure"),
    [
        ({"cpu": {"min": "3"}}, "spec.rewardCpu.total", "raise it, or lower these"),
        ({"cpu": {"min": "2", "max": "1"}}, "spec.rewardPools[0].cpu.max", ""),
        ({"cpu": {"min": "9m"}}, "spec.rewardPools", "raise cpu.min and cpu.max, or lower replicas"),
    ],
)
async def test_the_server_names_the_field_of_a_bound_that_can_not_hold(
    bench: Bench, pool: dict[str, Any], field: str, cure: str
) -> None:
    with pytest.raises(InvalidError) as caught:
        await submit(bench, **pool)
    assert [cause for cause in caught.value.causes if cause.field == field and cure in cause.message]
