import pytest

from longboat_runtime.agent.ray_command import RayNode, head_command, worker_command
from longboat_runtime.object_store import object_store_need, object_store_size

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


def test_the_store_of_the_fullest_node_holds_the_new_weights_beside_the_last() -> None:
    publication, tokens = 15 * 10**9, 64 * 16 * 8192
    assert object_store_need(publication, tokens) - 2 * publication >= 8 * tokens
    assert object_store_need(0, 0) == object_store_size(0), "Ray refuses less"
