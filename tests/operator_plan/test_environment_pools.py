"""Environment pods: a role of its own, whose number is granted by pool, as that of rollout pods is."""

from __future__ import annotations

from typing import Any

import pytest

from longboat_crds.base import Role
from longboat_crds.reasons import ConditionType, Reason
from longboat_crds.status import Phase
from longboat_operator.model import LABEL_ENVIRONMENT_POOL, CreateObject
from longboat_operator.planner import plan
from longboat_operator.reading.conditions import find
from tests.operator_plan.simulated_cluster import SimulatedCluster, runtime_of, spec_of, with_environments

GAMES = [f"sums-environment-games-{index}-a0" for index in range(3)]
LARGE = {"spec": {"containers": [{"name": "environment", "image": "tools:1", "resources": {"limits": {"cpu": "4"}}}]}}


def names(cluster: SimulatedCluster) -> list[str]:
    pods = [pod["metadata"] for pod in cluster.pods(Role.ENVIRONMENT)]
    return sorted(pod["name"] for pod in pods if "deletionTimestamp" not in pod)


def message(cluster: SimulatedCluster, kind: ConditionType) -> str:
    condition = find(cluster.status.conditions, kind)
    assert condition
    return f"{condition.status} {condition.reason}: {condition.message}"


def ready(cluster: SimulatedCluster) -> str | None:
    environment = cluster.status.roles.environment if cluster.status.roles else None
    return environment and environment.ready_text


@pytest.fixture
def three() -> SimulatedCluster:
    """Three pods of pool games and one of pool tools, all ready, and a driver that has asked for nothing."""
    cluster = SimulatedCluster(with_environments({"name": "games", "replicas": 3}, {"name": "tools"}))
    cluster.up()
    cluster.train(3)
    cluster.settle()
    return cluster


def test_each_pool_gets_its_pods(three: SimulatedCluster) -> None:
    assert names(three) == [*GAMES, "sums-environment-tools-0-a0"]
    labels = {pod["metadata"]["labels"][LABEL_ENVIRONMENT_POOL] for pod in three.pods(Role.ENVIRONMENT)}
    assert labels == {"games", "tools"}
    environment = three.status.roles.environment
    assert [pool.to_json() for pool in environment.pools] == [
        {"name": "games", "readyText": "3/3"},
        {"name": "tools", "readyText": "1/1"},
    ]
    assert "environment 4/4 (games 3/3, tools 1/1)" in message(three, ConditionType.ROLES_READY)
    assert plan(three.observed(), three.now).empty


def test_a_job_without_environments_says_nothing_of_them() -> None:
    cluster = SimulatedCluster()
    cluster.up()
    assert cluster.status.roles.environment is None
    assert "environment" not in message(cluster, ConditionType.ROLES_READY)
    assert cluster.status.allocation.grant.environment is None


def test_a_job_all_of_whose_rewards_are_episodes_says_nothing_of_reward_pods() -> None:
    cluster = SimulatedCluster(with_environments(rewards=[{"name": "episode", "kind": "Episode"}]))
    cluster.up()
    assert not cluster.pods(Role.REWARD)
    assert cluster.status.roles.reward is None
    assert "reward" not in message(cluster, ConditionType.ROLES_READY)


def test_the_first_pod_of_each_pool_is_checked_before_one_is_made() -> None:
    cluster = SimulatedCluster(with_environments())
    actions = [*cluster.reconcile().actions, *cluster.reconcile().actions]
    checked = [a.body["metadata"]["name"] for a in actions if isinstance(a, CreateObject) and a.dry_run]
    assert [name for name in checked if "environment" in name] == [GAMES[0], "sums-environment-tools-0-a0"]


def test_one_pod_of_each_pool_belongs_to_the_minimum() -> None:
    cluster = SimulatedCluster(with_environments({"name": "games", "replicas": 3}, {"name": "tools"}))
    cluster.settle()
    assert cluster.status.placement.minimum == 1 + 1 + 1 + 2 + 2
    for pod in cluster.pods():
        if pod["metadata"]["labels"].get(LABEL_ENVIRONMENT_POOL) != "tools":
            cluster.schedule(pod["metadata"]["name"])
    cluster.settle()
    assert cluster.status.placement.placed == 6, "three pods of one pool are none of the other"
    cluster.schedule("sums-environment-tools-0-a0")
    cluster.settle()
    assert cluster.status.phase is Phase.STARTING


def test_a_pool_without_a_ready_pod_holds_up_the_job_and_is_named(three: SimulatedCluster) -> None:
    three.crash("sums-environment-tools-0-a0")
    three.settle()
    for kind in (ConditionType.ROLES_READY, ConditionType.RUNNING, ConditionType.DEGRADED):
        assert "environment 3/4 (games 3/3, tools 0/1)" in message(three, kind)
    three.start("sums-environment-tools-0-a0")
    three.settle()
    assert message(three, ConditionType.DEGRADED) == "False AsAsked: "


def test_a_lost_pod_is_replaced_in_its_pool(three: SimulatedCluster) -> None:
    three.delete_pod(GAMES[1], grace=0)
    three.settle()
    three.advance(10)
    three.settle()
    assert names(three) == sorted([GAMES[0], "sums-environment-games-1-a1", GAMES[2], "sums-environment-tools-0-a0"])
    assert three.status.roles.environment.restarts == 1


def test_failures_have_a_limit_of_their_own(three: SimulatedCluster) -> None:
    three.edit(failurePolicy={"maxEnvironmentRestarts": 1})
    three.crash(GAMES[0])
    three.settle()
    assert three.status.phase is not Phase.FAILED
    three.advance(120)
    three.crash("sums-environment-tools-0-a0", container=1)
    three.settle()
    assert (three.status.phase, three.status.reason) == (Phase.FAILED, Reason.RESTART_LIMIT_EXCEEDED)
    assert "maxEnvironmentRestarts" in message(three, ConditionType.FAILED)


def test_environment_pods_stand_in_the_way_of_no_drain() -> None:
    """What runs there is played again elsewhere; only driver and trainer pods wait for a checkpoint."""
    cluster = SimulatedCluster(with_environments(), cordoned=set())
    cluster.up()
    cluster.train(1)
    cluster.settle()
    assert cluster.budget == 3
    [budget] = cluster.children["PodDisruptionBudget"].values()
    assert "environment" not in str(budget["spec"]["selector"])


def test_pods_leave_once_the_driver_has_drained_them(three: SimulatedCluster) -> None:
    three.ask_for_environments({"name": "games", "replicas": 1, "giveFirst": [GAMES[0]]})
    three.settle()
    assert three.leaving_environments == [GAMES[0], GAMES[2]]
    assert ready(three) == "2/2", "a pod that leaves is neither missing nor wanted"
    assert len(names(three)) == 4, "episodes that run there may end first"
    three.ask_for_environments({"name": "games", "replicas": 1, "drained": [GAMES[0], GAMES[2]]})
    three.settle()
    three.end_deleted()
    three.settle()
    assert names(three) == [GAMES[1], "sums-environment-tools-0-a0"]
    assert (three.status.restarts, three.status.restart_history) == (0, None)
    assert f"Role environment, pod {GAMES[0]} is drained and is deleted." in {event.message for event in three.events}
    assert plan(three.observed(), three.now).empty


def test_a_pool_keeps_at_least_one_pod_and_what_was_granted_until_another_driver_asks(three: SimulatedCluster) -> None:
    three.ask_for_environments({"name": "games", "replicas": 0}, {"name": "tools", "replicas": 5})
    three.settle()
    assert three.leaving_environments == [GAMES[2], GAMES[1]]
    three.start_driver()
    three.settle()
    assert three.leaving_environments == [GAMES[2], GAMES[1]], "the new driver has asked for nothing"
    three.ask_for_environments({"name": "games", "replicas": 3}, {"name": "tools", "replicas": 1})
    three.settle()
    assert (three.leaving_environments, ready(three)) == ([], "4/4")


def test_rollout_and_environment_pods_leave_side_by_side(three: SimulatedCluster) -> None:
    three.ask(1)
    three.ask_for_environments({"name": "games", "replicas": 2})
    three.settle()
    assert (three.leaving, three.leaving_environments) == (["sums-rollout-1-a0"], [GAMES[2]])
    demand = three.status.demand.to_json()
    demand["rollout"]["drained"] = three.leaving
    three.drive(demand=demand)
    three.settle()
    three.end_deleted()
    three.settle()
    assert three.rollout_pods() == ["sums-rollout-0-a0"]
    assert GAMES[2] in names(three), "its episodes still run"


@pytest.mark.parametrize(
    ("known", "cure"),
    [([], "it has none"), (["large", "small"], "did you mean large?"), (["gpu"], "it has gpu")],
)
def test_a_template_that_the_runtime_lacks_keeps_the_job_from_starting_until_it_is_there(
    known: list[str], cure: str
) -> None:
    pools = ({"name": "games"}, {"name": "tools", "template": "lagre"})
    runtime = runtime_of(environmentTemplates=[{"name": name} for name in known])
    cluster = SimulatedCluster(with_environments(*pools), runtime)
    cluster.settle()
    assert not cluster.pods()
    assert message(cluster, ConditionType.RUNTIME_RESOLVED) == (
        "False EnvironmentTemplateNotFound: spec.environmentPools[1].template: ClusterRLRuntime cpu has no entry 'lagre' in "
        f"spec.environmentTemplates; {cure}"
    )
    cluster.runtime = runtime_of(environmentTemplates=[{"name": "lagre", "template": LARGE}])
    cluster.up()
    images = {pod["metadata"]["name"]: pod["spec"]["containers"][1]["image"] for pod in cluster.pods(Role.ENVIRONMENT)}
    assert images == {GAMES[0]: "longboat-runtime:1", "sums-environment-tools-0-a0": "tools:1"}
    assert cluster.status.roles.environment.pools[1].cpu == "4"


def limits(memory: str) -> dict[str, Any]:
    body = {"spec": {"containers": [{"name": "environment", "resources": {"limits": {"memory": memory}}}]}}
    return {"roles": {"environment": {"template": body}}}


def test_pods_without_room_for_their_episodes_keep_the_job_from_starting_until_they_have_it() -> None:
    spec = with_environments({"name": "games", "episodesPerPod": 4})
    cluster = SimulatedCluster(spec, runtime_of(**limits("1Gi")))
    cluster.settle()
    assert not cluster.pods()
    assert message(cluster, ConditionType.RUNTIME_RESOLVED) == (
        "False EnvironmentMemoryTooSmall: spec.environmentPools[0].episodesPerPod: 4 episodes at once may hold 512Mi each "
        "(spec.environments[0].limits.memory), 2048Mi in all, but ClusterRLRuntime cpu allows the pool's container `environment` 1024Mi; "
        "lower it to 2, lower limits.memory, or choose a template with more memory"
    )
    cluster.runtime = runtime_of(**limits("2Gi"))
    cluster.up()
    assert cluster.status.phase is Phase.RUNNING


def test_a_suspended_job_has_no_environment_pods_and_has_them_again_when_it_resumes(three: SimulatedCluster) -> None:
    three.edit(suspend=True)
    three.train(0, "Suspended")
    three.settle()
    three.end_deleted()
    three.settle()
    assert (three.status.phase, names(three), ready(three)) == (Phase.SUSPENDED, [], "0/0")
    three.edit(environmentPools=[{"name": "games", "replicas": 1}, {"name": "tools"}], suspend=False)
    three.up()
    assert names(three) == ["sums-environment-games-0-a1", "sums-environment-tools-0-a1"]
    assert three.status.roles.environment.restarts == 0
    assert three.planned()[1].empty


def test_two_containers_that_run_as_one_user_are_warned_of() -> None:
    user = {"containers": [{"name": "environment", "securityContext": {"runAsUser": 10001}}]}
    runtime = runtime_of(roles={"environment": {"template": {"spec": user}}})
    cluster = SimulatedCluster(with_environments(), runtime)
    cluster.up()
    assert "of environment pods" in message(cluster, ConditionType.RUNTIME_RESOLVED)
    cluster = SimulatedCluster(spec_of(), runtime)
    cluster.up()
    assert "of environment pods" not in message(cluster, ConditionType.RUNTIME_RESOLVED), "it has no such pods"
