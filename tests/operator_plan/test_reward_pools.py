"""Several reward pools in one job: who gets which pods, and what is told of each pool."""

from typing import Any

import pytest

from longboat_crds.base import Role
from longboat_crds.reasons import ConditionType, Reason
from longboat_crds.status import Phase
from longboat_operator.model import LABEL_POOL, CreateObject
from longboat_operator.plan.records import remembered
from longboat_operator.reading.conditions import find
from tests.operator_plan.simulated_cluster import SimulatedCluster, runtime_of, spec_of

LARGE = {"spec": {"containers": [{"name": "graders", "image": "toolchain:1", "resources": {"limits": {"cpu": "4"}}}]}}


def in_config_map(name: str, pool: str) -> dict[str, Any]:
    return {"name": name, "pool": pool, "configMap": {"name": f"files-of-{name}", "key": "r.py", "function": "f"}}


def two_pools(code: dict[str, Any] | None = None, **runtime: Any) -> SimulatedCluster:
    """Pools `code`, with more fields if given, and `math`, which has two pods."""
    pools = [{"name": "code", **(code or {})}, {"name": "math", "replicas": 2, "gradersPerPod": 3}]
    rewards = [in_config_map("tests", "code"), in_config_map("exact", "math"), in_config_map("form", "math")]
    return SimulatedCluster(spec_of(rewardPools=pools, rewards=rewards), runtime_of(**runtime))


def names(cluster: SimulatedCluster) -> list[str]:
    return sorted(pod["metadata"]["name"] for pod in cluster.pods(Role.REWARD))


def message(cluster: SimulatedCluster, kind: ConditionType) -> str:
    found = find(cluster.status.conditions, kind)
    assert found
    return f"{found.status} {found.reason}: {found.message}"


def test_each_pool_gets_its_pods_and_each_pod_the_files_of_its_own_rewards() -> None:
    cluster = two_pools()
    cluster.up()
    pods = {pod["metadata"]["name"]: pod for pod in cluster.pods(Role.REWARD)}
    assert sorted(pods) == ["sums-reward-code-0-a0", "sums-reward-math-0-a0", "sums-reward-math-1-a0"]
    assert [pod["metadata"]["labels"][LABEL_POOL] for _, pod in sorted(pods.items())] == ["code", "math", "math"]
    files = {
        name: {v["configMap"]["name"] for v in pod["spec"]["volumes"] if "configMap" in v} for name, pod in pods.items()
    }
    assert files["sums-reward-code-0-a0"] == {"files-of-tests"}
    assert files["sums-reward-math-1-a0"] == {"files-of-exact", "files-of-form"}
    told = pods["sums-reward-math-1-a0"]["spec"]["containers"][0]["args"]
    assert told[told.index("--pool") + 1] == "math"
    assert told[told.index("--slots") + 1] == "3"


def test_the_first_pod_of_each_pool_is_checked_before_one_is_made() -> None:
    cluster = two_pools()
    actions = [*cluster.reconcile().actions, *cluster.reconcile().actions]
    checked = [a.body["metadata"]["name"] for a in actions if isinstance(a, CreateObject) and a.dry_run]
    assert [name for name in checked if "reward" in name] == ["sums-reward-code-0-a0", "sums-reward-math-0-a0"]


def test_the_status_counts_ready_pods_and_cpus_by_pool() -> None:
    cluster = two_pools({"template": "large"}, rewardTemplates=[{"name": "large", "template": LARGE}])
    cluster.up()
    cluster.crash("sums-reward-math-1-a0")
    cluster.settle()
    reward = cluster.status.roles.reward
    assert reward.ready_text == "2/3"
    assert [pool.to_json() for pool in reward.pools] == [
        {"name": "code", "readyText": "1/1", "cpu": "4"},
        {"name": "math", "readyText": "1/2"},
    ]
    assert cluster.status.roles.trainer.pools is None
    assert "reward 2/3 (code 1/1, math 1/2)" in message(cluster, ConditionType.DEGRADED)


def test_a_lost_pod_is_replaced_in_its_pool_and_no_other_pod_of_its_number() -> None:
    cluster = two_pools()
    cluster.up()
    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in cluster.pods(Role.REWARD)}
    cluster.delete_pod("sums-reward-math-0-a0", grace=0)
    cluster.settle()
    cluster.advance(10)
    cluster.settle()
    after = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in cluster.pods(Role.REWARD)}
    assert sorted(after) == ["sums-reward-code-0-a0", "sums-reward-math-0-a1", "sums-reward-math-1-a0"]
    assert {name: uid for name, uid in after.items() if name in before} == {
        name: uid for name, uid in before.items() if name != "sums-reward-math-0-a0"
    }
    reward = cluster.status.roles.reward
    kept = remembered(reward).records.values()
    assert sorted((r.pool, r.index, r.attempt, r.restarts) for r in kept) == [
        ("code", 0, 0, 0),
        ("math", 0, 1, 0),
        ("math", 1, 0, 0),
    ]
    assert reward.restarts == 1
    assert [record.pod for record in cluster.status.restart_history] == ["sums-reward-math-0-a0"]


def test_a_pool_whose_pods_are_all_gone_is_named_though_the_other_has_all_of_its_own() -> None:
    cluster = two_pools()
    cluster.up()
    cluster.crash("sums-reward-code-0-a0")
    cluster.settle()
    for kind in (ConditionType.ROLES_READY, ConditionType.RUNNING, ConditionType.DEGRADED):
        assert "reward 2/3 (code 0/1, math 2/2)" in message(cluster, kind)
    cluster.start("sums-reward-code-0-a0")
    cluster.settle()
    assert cluster.status.phase is Phase.RUNNING
    assert message(cluster, ConditionType.DEGRADED) == "False AsAsked: "


def test_failures_of_all_pools_count_towards_the_one_limit_of_the_role() -> None:
    cluster = two_pools()
    cluster.up()
    cluster.edit(failurePolicy={"maxRewardRestarts": 1})
    cluster.crash("sums-reward-code-0-a0")
    cluster.settle()
    assert cluster.status.phase is not Phase.FAILED
    cluster.advance(120)
    cluster.crash("sums-reward-math-1-a0")
    cluster.settle()
    assert (cluster.status.phase, cluster.status.reason) == (Phase.FAILED, Reason.RESTART_LIMIT_EXCEEDED)
    assert "maxRewardRestarts" in message(cluster, ConditionType.FAILED)


def suspend(cluster: SimulatedCluster) -> None:
    cluster.edit(suspend=True)
    cluster.train(0, "Suspended")
    cluster.settle()
    cluster.end_deleted()
    cluster.settle()
    assert cluster.status.phase is Phase.SUSPENDED


def test_pools_that_were_resized_while_suspended_have_their_new_numbers_of_pods() -> None:
    cluster = two_pools()
    cluster.up()
    suspend(cluster)
    cluster.edit(rewardPools=[{"name": "code", "replicas": 2}, {"name": "math", "replicas": 1}])
    cluster.edit(suspend=False)
    cluster.up()
    assert names(cluster) == ["sums-reward-code-0-a1", "sums-reward-code-1-a1", "sums-reward-math-0-a1"]
    assert cluster.status.phase is Phase.RUNNING
    assert cluster.status.roles.reward.restarts == 0
    assert cluster.planned()[1].empty


@pytest.mark.parametrize(
    ("known", "cure"),
    [([], "it has none"), (["large", "small"], "did you mean large?"), (["gpu"], "it has gpu")],
)
def test_a_template_that_the_runtime_lacks_keeps_the_job_from_starting_until_it_is_there(
    known: list[str], cure: str
) -> None:
    cluster = two_pools({"template": "lagre"}, rewardTemplates=[{"name": name} for name in known])
    cluster.settle()
    assert not cluster.pods()
    assert message(cluster, ConditionType.RUNTIME_RESOLVED) == (
        "False RewardTemplateNotFound: spec.rewardPools[0].template: ClusterRLRuntime cpu has no entry 'lagre' in "
        f"spec.rewardTemplates; {cure}"
    )
    assert (cluster.status.phase, cluster.status.reason) == (Phase.PENDING, Reason.REWARD_TEMPLATE_NOT_FOUND)
    cluster.runtime = runtime_of(rewardTemplates=[{"name": "lagre", "template": LARGE}])
    cluster.up()
    images = {pod["metadata"]["name"]: pod["spec"]["containers"][1]["image"] for pod in cluster.pods(Role.REWARD)}
    assert images == {
        "sums-reward-code-0-a0": "toolchain:1",
        "sums-reward-math-0-a0": "longboat-runtime:1",
        "sums-reward-math-1-a0": "longboat-runtime:1",
    }


def runs_programs(**code: Any) -> SimulatedCluster:
    """Two programs of 512 MiB at most may run at once in a pod of pool `code`."""
    pools = [{"name": "code", "gradersPerPod": 2, **code}, {"name": "math"}]
    rewards = [
        {"name": "small", "pool": "code", "kind": "Sandbox", "sandbox": {"memory": "64Mi"}},
        {"name": "tests", "pool": "code", "kind": "Sandbox", "sandbox": {"memory": "512Mi"}},
        in_config_map("exact", "math"),
    ]
    return SimulatedCluster(spec_of(rewardPools=pools, rewards=rewards))


def allowed(memory: Any) -> dict[str, Any]:
    return {"template": {"spec": {"containers": [{"name": "graders", "resources": {"limits": {"memory": memory}}}]}}}


def test_graders_without_room_for_their_programs_keep_the_job_from_starting_until_they_have_it() -> None:
    cluster = runs_programs()
    cluster.runtime = runtime_of(common=allowed("8Gi"), roles={"reward": allowed("1023Mi")})
    cluster.settle()
    assert not cluster.pods()
    assert message(cluster, ConditionType.RUNTIME_RESOLVED) == (
        "False GradersMemoryTooSmall: spec.rewardPools[0].gradersPerPod: 2 programs at once may hold 512Mi each "
        "(spec.rewards[1].sandbox.memory), 1024Mi in all, but ClusterRLRuntime cpu allows the pool's container `graders` 1023Mi; "
        "lower it to 1, lower sandbox.memory, or choose a template with more memory"
    )
    assert (cluster.status.phase, cluster.status.reason) == (Phase.PENDING, Reason.GRADERS_MEMORY_TOO_SMALL)
    cluster.runtime = runtime_of(common=allowed("8Gi"), roles={"reward": allowed("1Gi")})
    cluster.up()
    assert cluster.status.phase is Phase.RUNNING


@pytest.mark.parametrize("memory", [None, 2**30, "1073741824", "1.1e9", "not a quantity", "nan", "inf"])
def test_graders_without_a_memory_limit_or_with_room_start(memory: Any) -> None:
    """What is no quantity at all the API server refuses in its own words."""
    cluster = runs_programs()
    cluster.runtime = runtime_of(roles={"reward": allowed(memory)})
    cluster.up()
    assert cluster.status.phase is Phase.RUNNING


def test_the_template_that_a_pool_names_decides_about_its_memory() -> None:
    cluster = runs_programs(template="large")
    small, large = {"reward": allowed("100Mi")}, [{"name": "large", **allowed("2Gi")}]
    cluster.runtime = runtime_of(roles=small, rewardTemplates=large)
    cluster.up()
    assert cluster.status.phase is Phase.RUNNING, "pool math runs no programs"


def test_a_template_that_came_later_is_known_to_a_job_that_renews_its_runtime() -> None:
    cluster = two_pools()
    cluster.up()
    suspend(cluster)
    cluster.runtime = runtime_of(rewardTemplates=[{"name": "large", "template": LARGE}])
    cluster.edit(rewardPools=[{"name": "code", "template": "large"}, {"name": "math"}], suspend=False)
    cluster.settle()
    assert "kept in ControllerRevision sums-runtime-1" in message(cluster, ConditionType.RUNTIME_RESOLVED)
    cluster.edit(suspend=True)
    cluster.settle()
    assert cluster.status.phase is Phase.SUSPENDED, "so the cure is allowed"
    cluster.edit(runtimeRef={"renewOnResume": True}, suspend=False)
    cluster.up()
    assert cluster.status.phase is Phase.RUNNING
    assert cluster.children["Pod"][names(cluster)[0]]["spec"]["containers"][1]["image"] == "toolchain:1"


def test_a_label_of_a_template_makes_no_pod_of_another_role_one_of_a_pool() -> None:
    labels = {"metadata": {"labels": {LABEL_POOL: "code"}}}
    cluster = two_pools(common={"template": labels})
    cluster.up()
    assert cluster.status.phase is Phase.RUNNING
    assert cluster.planned()[1].empty
