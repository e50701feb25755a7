"""Environment pods by the real plans on a real API server: what is stored is what was applied, and they come and go as the driver asks."""

from __future__ import annotations

from typing import Any

import pytest

from longboat_operator.kube.client import KubeClient
from longboat_operator.kube.errors import InvalidError
from longboat_operator.kube.resources import NETWORK_POLICY, POD, RL_JOB
from longboat_operator.model import LABEL_ENVIRONMENT_POOL
from tests.crds.manifests import changed
from tests.crds.rule_cases import CASES, EPISODE, environments
from tests.operator_shell.test_grants_live import Driver, all_ready, allocation, bench
from tests.operator_shell.test_surroundings_live import Bench
from tests.support.waiting import eventually_async

__all__ = ["bench"]

pytestmark = pytest.mark.cluster

POOLS = [{"name": "games", "replicas": 2}, {"name": "tools"}]
ENVIRONMENTS = environments(
    {"pool": "games", "domains": ["games"]},
    {"pool": "tools", "domains": ["tools"]},
    pools=POOLS,
    dataset__columns__domain="topic",
    runtimeRef={"kind": "RLRuntime", "name": "nowhere"},
)
GAMES = ["x-environment-games-0-a0", "x-environment-games-1-a0"]


async def pods(bench: Bench) -> set[str]:
    found = await bench.all(POD)
    return {name for name, pod in found.items() if LABEL_ENVIRONMENT_POOL in pod["metadata"]["labels"]}


async def submit(bench: Bench) -> None:
    body = changed({"metadata.name": "x", "metadata.namespace": bench.namespace, **ENVIRONMENTS})
    await bench.admin.create(RL_JOB, body)


async def leaving(bench: Bench) -> list[str]:
    grant = (await allocation(bench)).get("grant", {}).get("environment", {})
    return [each["pod"] for pool in grant.get("pools", ()) for each in pool.get("leaving", ())]


async def test_a_job_gets_its_environment_pods_and_its_policy_and_comes_to_rest(bench: Bench) -> None:
    async with bench.operator() as shell:
        await submit(bench)

        async def has_all() -> bool:
            return await pods(bench) == {*GAMES, "x-environment-tools-0-a0"} and shell._queue.idle(1.0)

        await eventually_async(has_all)
        policy = await bench.get(NETWORK_POLICY, "x-environment")
        ports = policy["spec"]["egress"][0]["ports"]
        assert {"port": 10002, "endPort": 19999, "protocol": "TCP"} in ports
        version = policy["metadata"]["resourceVersion"]
        await all_ready(bench)
        await eventually_async(has_all)
        after = await bench.get(NETWORK_POLICY, "x-environment")
        assert after["metadata"]["resourceVersion"] == version, "it is what was applied"


async def test_environment_pods_leave_as_the_driver_asks(bench: Bench) -> None:
    driver = Driver(bench)
    async with bench.operator():
        await submit(bench)

        async def has_games() -> bool:
            return set(GAMES) <= await pods(bench)

        await eventually_async(has_games)
        await all_ready(bench)
        await driver.start()
        demand: dict[str, Any] = {"name": "games", "replicas": 1, "giveFirst": [GAMES[0]]}
        await driver.ask_environments(number=1, pools=[demand])

        async def leaves() -> bool:
            return await leaving(bench) == [GAMES[0]]

        await eventually_async(leaves)
        await driver.ask_environments(number=1, pools=[{**demand, "drained": [GAMES[0]]}])

        async def is_gone() -> bool:
            return await pods(bench) == {GAMES[1], "x-environment-tools-0-a0"}

        await eventually_async(is_gone)


ABOUT_ENVIRONMENTS = [
    (changes, path)
    for changes, path in CASES
    if any("environment" in field for field in changes) or changes.get("spec.rewards") == [EPISODE]
]


async def test_the_api_server_judges_environments_as_the_models_do(admin: KubeClient, namespace: str) -> None:
    wrong = []
    for number, (changes, path) in enumerate(ABOUT_ENVIRONMENTS):
        body = changed({"metadata.name": f"x{number}", "metadata.namespace": namespace, **changes})
        try:
            await admin.create(RL_JOB, body, dry_run=True)
            refused = None
        except InvalidError as error:
            refused = str(error)
        if (refused is None) is not (path is None):
            wrong.append((changes, path, refused))
    assert not wrong
