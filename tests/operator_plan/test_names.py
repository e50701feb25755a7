"""No name of an object of one job is another job's."""

from __future__ import annotations

from itertools import accumulate, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from longboat_crds.base import JOB_NAME_MAX_LENGTH, MANIFEST, POOL_NAME_MAX_LENGTH, Role
from longboat_crds.job import RLJobSpec
from longboat_crds.rewards import RewardPoolSpec
from longboat_crds.runtime import RLRuntimeSpec
from longboat_operator.model import DNS_PEERS
from longboat_operator.plan.templates import runtime_revision
from longboat_operator.pods.access import driver_account, driver_role, driver_role_binding, ray_token
from longboat_operator.pods.claim import checkpoint_claim
from longboat_operator.pods.names import JobRef, Place
from longboat_operator.pods.network import environment_network, head_service, job_network, reward_network
from tests.operator_plan.simulated_cluster import spec_of

# Parts of derived names, so that jobs and pools are called by them.
WORDS = (*Role, "job", "head", "checkpoint", "runtime", "ray", "token", "x", "0", "1", "a0", "12345678")
SPEC = RLJobSpec.model_validate(spec_of())
RUNTIME = RLRuntimeSpec(image="longboat-runtime:1")


def words(longest: int) -> st.SearchStrategy[str]:
    """Names of as many words as fit, all of which are short enough."""

    def joined(parts: list[str]) -> str:
        return max((text for text in accumulate(parts, "{}-{}".format) if len(text) <= longest), key=len)

    return st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(joined)


def accepted(pool: str) -> bool:
    try:
        RewardPoolSpec.model_validate({"name": pool}, context=MANIFEST)
    except ValidationError:
        return False
    return True


def names(job: JobRef, pools: list[str]) -> set[tuple[str, str]]:
    """Returns the kind and name of every object that the job has or may have, with a few numbers each."""
    bodies = [
        driver_account(job), driver_role(job), driver_role_binding(job), head_service(job), job_network(job),
        reward_network(job, DNS_PEERS), environment_network(job, DNS_PEERS), checkpoint_claim(job, SPEC.checkpoint), ray_token(job, job.ray_token("12345678")),
        *(runtime_revision(job, number, RUNTIME) for number in (1, 11)),
    ]  # fmt: skip
    pods = {
        job.pod(role, Place(pool if role.has_pools else "", index), attempt)
        for role, pool, index, attempt in product(Role, pools, (0, 1, 10), (0, 1, 10))
    }
    return {(body["kind"], body["metadata"]["name"]) for body in bodies} | {("Pod", name) for name in pods}


def job(name: str) -> JobRef:
    return JobRef("research", name, f"uid of {name}")


@given(
    first=words(JOB_NAME_MAX_LENGTH // 2).map(lambda text: f"x{text}"),
    more=words(JOB_NAME_MAX_LENGTH // 2),
    between=st.sampled_from(["-", ""]),
    pools=st.tuples(*[st.lists(words(POOL_NAME_MAX_LENGTH).filter(accepted), min_size=1, max_size=3)] * 2),
)
def test_two_jobs_share_no_name(first: str, more: str, between: str, pools: tuple[list[str], list[str]]) -> None:
    shorter, longer = job(first), job(f"{first}{between}{more}")
    assert not names(shorter, pools[0]) & names(longer, pools[1])


@given(role=st.sampled_from([role for role in Role if role.has_pools]), pool=words(POOL_NAME_MAX_LENGTH))
def test_a_pool_is_refused_only_where_names_would_meet(role: Role, pool: str) -> None:
    """Some other job, with a pool of a name that is accepted, could have a pod of the same name."""
    if accepted(pool):
        return
    mine = f"x-{role}-{pool}-0-a0"
    owners = {mine.removesuffix(f"-{other}-0-a0") for other in Role if not other.has_pools} - {mine}
    pooled = [f"-{other}-" for other in Role if other.has_pools]
    owners |= {mine[:at] for at in range(1, len(mine)) if mine.startswith(tuple(pooled), at)}
    assert len(owners) > 1


def test_the_old_name_of_the_networkpolicy_met_another_jobs() -> None:
    """Up to 0.2.0 a job's policy had its own name, which a job called NAME-reward has from job NAME."""
    assert job("countdown-reward").name == job("countdown").reward_network
    assert not names(job("countdown"), ["default"]) & names(job("countdown-reward"), ["default"])


@pytest.mark.parametrize("pool", ["driver", "a-rollout", "b-trainer", "reward-a", "a-reward-b"])
def test_a_stored_job_with_such_a_pool_is_still_read(pool: str) -> None:
    assert not accepted(pool)
    assert RewardPoolSpec.model_validate({"name": pool}).name == pool
