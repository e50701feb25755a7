import pytest

from longboat_runtime.agent.ray_command import RayNode, head_command, worker_command
from longboat_runtime.object_store import object_store_need, object_store_size, store_shortage

NODE = RayNode(
    "10.0.0.7", {"longboat-rollout": 2}, {"longboat.dev/role": "rollout", "longboat.dev/pod": "x-rollout-0-a0"}
)


def test_a_worker_offers_its_role_and_says_who_it_is() -> None:
    command = worker_command(NODE, "x-head.default.svc:6379")
    assert {"--address=x-head.default.svc:6379", "--node-ip-address=10.0.0.7", "--num-cpus=0", "--block"} <= set(
        command
    )
    assert '--resources={"longboat-rollout": 2}' in command
    assert "--labels=longboat.dev/role=rollout,longboat.dev/pod=x-rollout-0-a0" in command
    assert "--head" not in command


def test_a_head_listens_where_workers_look() -> None:
    assert {"--head", "--port=6379", "--node-manager-port=6380", "--object-manager-port=6381"} <= set(
        head_command(NODE)
    )


@pytest.mark.parametrize(
    ("shared_memory", "store"), [(64 * 2**20, 80_000_000), (256 * 2**20, 128 * 2**20), (2**35, 2**35 - 2**27)]
)
def test_the_store_takes_what_engines_leave(shared_memory: int, store: int) -> None:
    assert object_store_size(shared_memory) == store


def test_a_rollout_pod_has_room_for_two_buckets_where_its_store_has_room_for_four() -> None:
    bucket = 2**29
    shared_memory = 6 * bucket
    assert object_store_size(shared_memory, engines=True) == 4 * bucket
    assert object_store_size(256 * 2**20, engines=True) == 128 * 2**20


def test_the_store_of_the_fullest_node_holds_buckets_and_responses() -> None:
    bucket, responses = 2**29, 64 * 16 * 8192
    assert 0.8 * (object_store_need(bucket, responses) - responses) >= 3 * bucket, "Ray writes to disk at 80 %"
    assert object_store_need(0, 0) == object_store_size(0), "Ray refuses less"


def test_a_store_that_is_too_small_for_buckets_is_named_with_the_cure() -> None:
    assert store_shortage({"trainer-0": 2**31, "rollout-0": 2**31}, 2**29) is None
    warning = store_shortage({"trainer-0": 2**31, "rollout-0": 2**31 - 1, "rollout-1": 2**30}, 2**29)
    assert warning is not None
    assert "2 Ray nodes, among them rollout-1" in warning
    assert "enlarge /dev/shm" in warning
