"""What runtime templates give the pods of a job."""

from longboat_crds.runtime import RLRuntimeSpec
from longboat_runtime.plan.capacity import from_runtime
from tests.driver.fakes import make_spec
from tests.plan.planned import GIB, MIB


def container(name: str, memory: str) -> dict[str, object]:
    return {"name": name, "resources": {"limits": {"memory": memory}}}


def test_a_template_without_settings_has_the_operators_defaults() -> None:
    capacity = from_runtime(RLRuntimeSpec(image="image"), make_spec(), 80 * GIB)
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
    capacity = from_runtime(runtime, make_spec(), None)
    assert capacity.shared_memory["trainer"] == 32 * GIB
    assert capacity.shared_memory["rollout"] == GIB
    assert capacity.memory == {"trainer": 128 * GIB}


def test_the_drivers_pod_has_room_for_the_responses_of_a_step() -> None:
    spec = make_spec()
    large = spec.model_copy(
        update={
            "rollout": spec.rollout.model_copy(
                update={"sampling": spec.rollout.sampling.model_copy(update={"max_tokens": 2**20})}
            )
        }
    )
    capacity = from_runtime(RLRuntimeSpec(image="image"), large, None)
    samples = large.rounds.prompts_per_round * large.algorithm.group_size
    assert capacity.shared_memory["driver"] == 256 * MIB + samples * 16 * MIB
    assert capacity.shared_memory["trainer"] == 256 * MIB
