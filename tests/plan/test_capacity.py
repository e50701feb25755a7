"""What runtime templates give the pods of a job."""

from longboat_crds.runtime import RLRuntimeSpec
from longboat_runtime.plan.capacity import from_runtime
from tests.plan.planned import GIB, MIB


def container(name: str, memory: str) -> dict[str, object]:
    return {"name": name, "resources": {"limits": {"memory": memory}}}


def test_a_template_without_settings_has_the_operators_defaults() -> None:
    capacity = from_runtime(RLRuntimeSpec(image="image"), 80 * GIB)
    assert capacity.shared_memory == dict.fromkeys(("driver", "rollout", "trainer", "reward"), 256 * MIB)
    assert capacity.memory == {}
    assert capacity.device == capacity.engine_device == 80 * GIB


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
    capacity = from_runtime(runtime, None)
    assert capacity.shared_memory["trainer"] == 32 * GIB
    assert capacity.shared_memory["rollout"] == GIB
    assert capacity.memory == {"trainer": 128 * GIB}
