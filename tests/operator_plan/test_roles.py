"""What the table of roles says is so of the pods that are made, and of the limits that the spec sets."""

from typing import Any

import pytest

from longboat_crds.base import Role
from longboat_crds.failure import FailurePolicySpec
from longboat_crds.job import RLJobSpec
from longboat_crds.runtime import RLRuntimeSpec
from longboat_operator.pods.names import JobRef, Place, numbered
from longboat_operator.pods.roles import ROLES
from longboat_operator.reading.view import PodView
from longboat_operator.status.roles import RoleSurvey
from tests.operator_plan.simulated_cluster import with_environments

JOB = JobRef("research", "sums", "uid")
POOLS = [{"name": "default", "replicas": 2}]
SPEC = RLJobSpec.model_validate(with_environments(rollout={"replicas": 3}, rewardPools=POOLS, trainer={"replicas": 4}))


def containers(role: Role) -> list[dict[str, Any]]:
    spec = ROLES[role].pod_spec(JOB, SPEC, RLRuntimeSpec(image="runtime:1"), ROLES[role].places(SPEC)[0].pool)
    return [*spec["containers"], *spec.get("initContainers", [])]


def test_every_role_has_a_record() -> None:
    assert set(ROLES) == set(Role)
    assert next(iter(ROLES)) is Role.DRIVER, "all others wait for its pod"


@pytest.mark.parametrize("role", list(Role))
def test_the_containers_named_are_those_of_the_pod(role: Role) -> None:
    assert [container["name"] for container in containers(role)] == list(ROLES[role].containers)
    assert ROLES[role].cpu_container in {None, *ROLES[role].containers}


@pytest.mark.parametrize("role", list(Role))
def test_who_mounts_checkpoints_is_told(role: Role) -> None:
    mounts = {mount["name"] for container in containers(role) for mount in container["volumeMounts"]}
    assert ("checkpoint" in mounts) is ROLES[role].mounts_checkpoints


def test_as_many_pods_as_the_spec_asks_for() -> None:
    assert {role: traits.places(SPEC) for role, traits in ROLES.items()} == {
        Role.DRIVER: numbered(1), Role.ROLLOUT: numbered(3), Role.REWARD: numbered(2, "default"), Role.TRAINER: numbered(4),
        Role.ENVIRONMENT: (*numbered(2, "games"), *numbered(1, "tools")),
    }  # fmt: skip


def test_a_pool_without_anything_to_grade_has_no_pods() -> None:
    spec = RLJobSpec.model_validate(with_environments(rewards=[{"name": "episode", "kind": "Episode"}]))
    assert ROLES[Role.REWARD].places(spec) == ()


@pytest.mark.parametrize("role", list(Role))
def test_the_traits_of_pools_are_those_of_the_pod(role: Role) -> None:
    traits = ROLES[role].pools
    assert (traits is not None) is role.has_pools
    if traits:
        assert traits.container in ROLES[role].containers
        assert [pool.name for pool in traits.specs(SPEC)] == list({place.pool: 0 for place in ROLES[role].places(SPEC)})
        assert getattr(RLJobSpec.model_fields[snake(traits.field)], "alias", None) == traits.field
        assert (
            getattr(RLRuntimeSpec.model_fields[snake(traits.templates_field)], "alias", None) == traits.templates_field
        )


def snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


@pytest.mark.parametrize("role", list(Role))
def test_the_limit_of_a_role_is_that_of_the_field_it_names(role: Role) -> None:
    policy = FailurePolicySpec.model_validate({ROLES[role].limit_field: 7})
    assert {other: ROLES[other].limit(policy) == 7 for other in Role} == {other: other is role for other in Role}


@pytest.mark.parametrize("role", list(Role))
def test_rounds_do_without_some_of_the_pods_of_rollout_rewards_and_environments_alone(role: Role) -> None:
    raw = {"metadata": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    one_of_two = RoleSurvey(role, numbered(2), pods=(PodView("p", "uid", Place("", 0), 0, raw),))
    assert one_of_two.serves is (role in {Role.ROLLOUT, Role.REWARD, Role.ENVIRONMENT})
    assert not RoleSurvey(role, numbered(2), pods=()).serves


def test_rounds_need_one_pod_of_each_reward_pool() -> None:
    raw = {"metadata": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    places = (*numbered(2, "code"), *numbered(1, "math"))
    ready = {place: PodView(str(place), f"uid-{place}", place, 0, raw) for place in places}
    assert RoleSurvey(Role.REWARD, places, (ready[Place("code", 1)], ready[Place("math", 0)])).serves
    without = RoleSurvey(Role.REWARD, places, (ready[Place("code", 0)], ready[Place("code", 1)]))
    assert not without.serves
    assert without.by_pool == "2/3 (code 2/2, math 0/1)"
