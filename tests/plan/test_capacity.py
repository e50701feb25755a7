"""What runtime templates give the pods of a job."""

from typing import Any

import pytest

from longboat_crds.base import Role
from longboat_crds.checkpoint import CheckpointSpec
from longboat_crds.environments import EnvironmentPoolSpec, EnvironmentSpec
from longboat_crds.load import ApiError
from longboat_crds.quantities import in_bytes
from longboat_crds.runtime import RLRuntimeSpec
from longboat_crds.shared_memory import default_shared_memory
from longboat_operator.pods.merge import merge
from longboat_runtime.plan.capacity import CONTAINERS, claim_size, from_runtime
from tests.driver.fakes import make_spec
from tests.plan.planned import GIB, MIB


def container(name: str, memory: str) -> dict[str, object]:
    return {"name": name, "resources": {"limits": {"memory": memory}}}


def test_a_template_without_settings_has_the_operators_defaults() -> None:
    capacity = from_runtime(RLRuntimeSpec(image="image"), make_spec())
    assert capacity.shared_memory == dict.fromkeys(CONTAINERS, 256 * MIB)
    assert capacity.memory == {}


def test_a_roles_template_wins_over_the_common_one() -> None:
    volume = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
    common = {"spec": {"volumes": [volume]}}
    trainer = {
        "spec": {
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "32Gi"}}],
            "containers": [container("trainer", "128Gi"), container("other", "1Gi")],
        }
    }
    runtime = RLRuntimeSpec.model_validate(
        {"image": "image", "common": {"template": common}, "roles": {"trainer": {"template": trainer}}}
    )
    capacity = from_runtime(runtime, make_spec())
    assert capacity.shared_memory["trainer"] == 32 * GIB
    assert capacity.shared_memory["rollout"] == GIB
    assert capacity.memory == {"trainer": 128 * GIB}


def runtime_with(*volumes: object, memory: str = "1Gi") -> RLRuntimeSpec:
    """A template whose common part, and then its trainers, have volumes `shm` of these sources."""
    specs = [{"spec": {"volumes": [{"name": "shm", **volume}]}} for volume in volumes]
    specs[-1]["spec"]["containers"] = [container("trainer", memory)]
    sections = {"common": {"template": specs[0]}, "roles": {"trainer": {"template": specs[-1]}}}
    return RLRuntimeSpec.model_validate({"image": "image", **sections})


@pytest.mark.parametrize(
    ("volumes", "size"),
    [
        ([{"emptyDir": {"medium": "Memory"}}], 256 * MIB),
        ([{"emptyDir": {"sizeLimit": "1Gi"}}, {"emptyDir": {}}], GIB),
        ([{"emptyDir": {"sizeLimit": "1Gi"}}, {"emptyDir": {"sizeLimit": None}}], None),
        ([{"hostPath": {"path": "/dev/shm"}}], None),
        ([{"hostPath": {"path": "/dev/shm"}}, {"emptyDir": {"sizeLimit": "2Gi"}}], 2 * GIB),
    ],
)
def test_shared_memory_is_what_the_merged_template_limits_it_to(volumes: list[object], size: int | None) -> None:
    runtime = runtime_with(*volumes)
    assert from_runtime(runtime, make_spec()).shared_memory.get("trainer") == size
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}}
    merged: Any = {"volumes": [shm]}
    for part in (runtime.common, runtime.roles.trainer):
        merged = merge(merged, part.template["spec"])
    [volume] = [volume for volume in merged["volumes"] if volume["name"] == "shm"]
    limit = volume.get("emptyDir", {}).get("sizeLimit")
    assert (limit and in_bytes(limit)) == size


@pytest.mark.parametrize("memory", ["64GB", "-1Gi", "much", "NaN"])
def test_a_limit_that_is_no_quantity_is_named(memory: str) -> None:
    field = "spec.containers\\[trainer\\].resources.limits.memory"
    with pytest.raises(ApiError, match=f"{field}: {memory} is no quantity of bytes"):
        from_runtime(runtime_with({}, memory=memory), make_spec())


def test_only_a_claim_that_the_operator_creates_has_a_known_size() -> None:
    assert claim_size(CheckpointSpec()) == 10 * GIB
    assert claim_size(CheckpointSpec(claim_name="mine")) is None


def test_the_drivers_pod_has_room_for_the_responses_of_a_step() -> None:
    spec = make_spec()
    sampling = spec.rollout.sampling.model_copy(update={"max_tokens": 2**20})
    long = spec.model_copy(update={"rollout": spec.rollout.model_copy(update={"sampling": sampling})})
    capacity = from_runtime(RLRuntimeSpec(image="image"), long)
    samples = long.rounds.prompts_per_round * long.algorithm.group_size
    assert capacity.shared_memory["driver"] == 256 * MIB + samples * 16 * MIB
    assert capacity.shared_memory["trainer"] == 256 * MIB


def test_samples_of_environments_are_whole_contexts() -> None:
    base = make_spec()
    pools = [
        EnvironmentPoolSpec(name="small", episodes_per_pod=2),
        EnvironmentPoolSpec(name="main", episodes_per_pod=512),
    ]
    update = {
        "model": base.model.model_copy(update={"max_length": 2**17}),
        "environments": [EnvironmentSpec(name="game", function="games:play", pool="main")],
        "environment_pools": pools,
    }
    spec = base.model_copy(update=update)
    samples = spec.rounds.prompts_per_round * spec.algorithm.group_size
    assert spec.rollout.sampling.max_tokens < 2**17
    assert default_shared_memory(Role.DRIVER, spec) == f"{256 + samples * 2}Mi"
    assert default_shared_memory(Role.ENVIRONMENT, spec) == f"{256 + 512 // 2}Mi"
    assert default_shared_memory(Role.REWARD, spec) == "256Mi"
