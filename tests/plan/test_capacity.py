"""What runtime templates give the pods of a job."""

from typing import Any

import pytest

from longboat_crds.checkpoint import CheckpointSpec
from longboat_crds.load import ApiError
from longboat_crds.quantities import in_bytes
from longboat_crds.runtime import RLRuntimeSpec
from longboat_operator.pods.merge import merge
from longboat_runtime.plan.capacity import CONTAINERS, claim_size, from_runtime
from tests.plan.planned import GIB, MIB


def container(name: str, memory: str) -> dict[str, object]:
    return {"name": name, "resources": {"limits": {"memory": memory}}}


def test_a_template_without_settings_has_the_operators_defaults() -> None:
    capacity = from_runtime(RLRuntimeSpec(image="image"))
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
    capacity = from_runtime(runtime)
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
    assert from_runtime(runtime).shared_memory.get("trainer") == size
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
        from_runtime(runtime_with({}, memory=memory))


def test_only_a_claim_that_the_operator_creates_has_a_known_size() -> None:
    assert claim_size(CheckpointSpec()) == 10 * GIB
    assert claim_size(CheckpointSpec(claim_name="mine")) is None
