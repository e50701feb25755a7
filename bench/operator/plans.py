"""CPU of one plan: of a converged job of 20 pods, of its capacity, and of a job whose 32 reward pods share CPUs."""

from __future__ import annotations

import time
from statistics import median

from bench.record import loop_seconds
from longboat_operator.model import Key
from longboat_operator.planner import plan
from tests.operator_plan.reward_cluster import RewardCluster, reward_spec
from tests.operator_plan.simulated_cluster import KEY, SimulatedCluster, spec_of

PODS = 20
LOOKS = 200


def plan_costs(repeats: int) -> dict[str, float]:
    """Measures the CPU milliseconds of a plan that finds nothing to do, and of a Python loop: medians over `repeats`."""
    cluster = SimulatedCluster(
        spec_of(rollout={"replicas": 12}, trainer={"replicas": 4}, rewardPools=[{"name": "default", "replicas": 3}])
    )
    cluster.up()
    cluster.train(5)
    cluster.ask(12, giveFirst=cluster.rollout_pods(), reason="as many as it can use")
    cluster.settle()
    if len(cluster.pods()) != PODS:
        raise RuntimeError(f"the job has {len(cluster.pods())} pods, not {PODS}")
    reward = _with_reward_pools()
    return {
        "job_ms": _cost(cluster, KEY, repeats),
        "reward_job_ms": _cost(reward, KEY, repeats),
        "reward_capacity_ms": _cost(reward, KEY.capacity, repeats),
        "capacity_ms": _cost(cluster, KEY.capacity, repeats),
        "loop_ms": median(loop_seconds() for _ in range(repeats)) * 1e3,
    }


def _with_reward_pools() -> RewardCluster:
    """Makes a cluster with a converged job, whose four reward pools of eight pods each have asked for CPUs."""
    pools = [{"name": name, "replicas": 8} for name in ("code", "math", "style", "tools")]
    cluster = RewardCluster(reward_spec("32", pools, rollout={"replicas": 1}, trainer={"replicas": 1}))
    cluster.up()
    cluster.train(5)
    cluster.ask_cpus(code="16", math="8", style="4", tools="4")
    cluster.swing()
    return cluster


def _cost(cluster: SimulatedCluster, key: Key, repeats: int) -> float:
    observed = cluster.observed(key)
    if not plan(observed, cluster.now).empty:
        raise RuntimeError(f"{key} has not converged")
    costs = []
    for _ in range(repeats):
        began = time.process_time()
        for _ in range(LOOKS):
            plan(observed, cluster.now)
        costs.append(1e3 * (time.process_time() - began) / LOOKS)
    return median(costs)
