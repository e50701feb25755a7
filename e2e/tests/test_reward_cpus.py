"""CPUs that move between reward pods while a job trains: real nodes change real pods, and a watcher sees all their states in the API."""

from collections.abc import Callable

import pytest

from e2e import reward_cpus
from e2e.jobs import Job
from e2e.reward_cpus import TOTAL, apply_runtime_apart, moved, requested, reward_cpu, watching
from e2e.site import Site
from longboat_crds.quantities import millicores

pytestmark = pytest.mark.cluster


def test_cpus_move_to_the_pool_that_waits(site: Site, elastic_job: Job) -> None:
    pools = {pool["name"]: millicores(pool["cpu"]) for pool in reward_cpu(elastic_job)["pools"]}
    poor = min(pools, key=pools.__getitem__)
    pods = elastic_job.pod_uids("reward")
    with watching(elastic_job) as watched:
        elastic_job.wait("the current quotas", lambda: all(watched.allowed[uid] for uid in pods.values()))
        reward_cpus.load(site.data, heavy=poor)
        try:
            elastic_job.wait(f"CPUs for {poor}", lambda: moved(elastic_job, poor))
            elastic_job.wait(
                "both quotas change",
                lambda: [len(watched.allowed[uid]) for uid in pods.values()],
                lambda quotas: min(quotas) > 1,
            )
        finally:
            reward_cpus.load(site.data, heavy="none")
        elastic_job.wait_for_step(elastic_job.step() + 1)
    assert elastic_job.pod_uids("reward") == pods
    assert watched.resized == set(pods.values()), "one gave and one got"
    assert watched.restarts == 0
    assert max(watched.sums) <= TOTAL
    assert max(watched.quotas) <= TOTAL


@pytest.mark.extended
def test_cpus_move_to_the_pool_that_waits_and_back_while_the_job_trains(
    site: Site, new_job: Callable[[str], Job]
) -> None:
    reward_cpus.write_data(site.data, heavy="code")
    # On one node, so that what one reward pod gives is there for the other.
    apart = min(site.cluster.nodes, key=lambda node: requested(node, site.cluster))
    runtime = apply_runtime_apart(site, "rewards-together", apart)
    job = new_job("reward-cpus")
    with watching(job) as watched:
        job.apply(reward_cpus.spec(runtime))
        job.wait_for("Running")
        job.wait_for_step(2)
        pods = job.pod_uids("reward")
        job.wait("CPUs for code", lambda: moved(job, "code"))
        step = job.step()
        reward_cpus.load(site.data, heavy="math")
        job.wait("CPUs for math", lambda: moved(job, "math"))
        reward_cpus.load(site.data, heavy="code")
        job.wait("CPUs for code again", lambda: moved(job, "code"))
        job.wait_for_step(step + 3)
        job.wait(
            "both quotas change",
            lambda: [len(watched.allowed[uid]) for uid in pods.values()],
            lambda quotas: min(quotas) > 1,
        )
        assert job.pod_uids("reward") == pods
        shown = job.cluster.kubectl("-n", job.namespace, "get", "rljobs", job.name)
        assert f"{job.status()['rewardCpu']['used']}/{job.status()['rewardCpu']['total']}" in shown
        described = job.cluster.kubectl("-n", job.namespace, "describe", "rljob", job.name)
    assert "CPUsMoved" in described
    assert watched.resized == set(pods.values()), "both gave and got"
    assert watched.restarts == 0
    assert watched.sums
    assert max(watched.sums) <= TOTAL
    assert max(watched.quotas) <= TOTAL
