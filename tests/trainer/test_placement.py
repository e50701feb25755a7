"""Where ranks run, by what Ray says of its nodes."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.ray_nodes import POD_LABEL, ROLE_LABEL, TRAINER_RESOURCE
from longboat_runtime.trainer import placement


def node(name: str, pod: str | None, offers: int = 2, *, alive: bool = True, role: str = "trainer") -> dict[str, Any]:
    """One of `ray.nodes()`, which lists no resources of the dead."""
    return {
        "NodeID": name,
        "Alive": alive,
        "Labels": {} if pod is None else {ROLE_LABEL: role, POD_LABEL: pod},
        "Resources": {TRAINER_RESOURCE: offers} if alive and offers else {},
    }


def pod_nodes(nodes: list[dict[str, Any]], pods: int, devices: int) -> list[str] | None:
    """The names of the nodes that are chosen."""
    chosen = placement.pod_nodes(nodes, pods, devices)
    return None if chosen is None else [each["NodeID"] for each in chosen]


FIRST, SECOND = node("n0", "x-trainer-0-a0"), node("n1", "x-trainer-1-a0")


def test_ranks_wait_for_all_pods_and_follow_their_order() -> None:
    assert pod_nodes([FIRST], 2, 2) is None
    assert pod_nodes([SECOND, FIRST], 2, 2) == ["n0", "n1"]
    many = [node(f"n{index}", f"x-trainer-{index}-a0") for index in (10, 9, *range(9))]
    assert pod_nodes(many, 11, 2) == [f"n{index}" for index in range(11)]


def test_a_pod_is_there_once_its_newest_attempt_lives() -> None:
    newer = node("n2", "x-trainer-1-a1")
    dead = node("n2", "x-trainer-1-a1", alive=False)
    assert pod_nodes([FIRST, SECOND, newer], 2, 2) == ["n0", "n2"], "Ray doesn't know yet that the older one is dead"
    assert pod_nodes([FIRST, SECOND, dead], 2, 2) is None
    assert pod_nodes([FIRST, node("n1", "x-trainer-1-a0", alive=False), newer], 2, 2) == ["n0", "n2"]
    assert pod_nodes([FIRST, node("n3", "x-trainer-1-a10"), node("n4", "x-trainer-1-a9")], 2, 2) == ["n0", "n3"]


def test_a_pod_whose_container_started_again_is_there_once_ray_has_given_up_its_earlier_node() -> None:
    again = node("n2", "x-trainer-1-a0")
    assert pod_nodes([FIRST, SECOND, again], 2, 2) is None
    assert pod_nodes([FIRST, SECOND | {"Alive": False, "Resources": {}}, again], 2, 2) == ["n0", "n2"]


def test_other_pods_are_no_trainers() -> None:
    others = [
        node("n5", "x-reward-trainer-1-a0", 0, role="reward"),
        node("n6", "x-trainer-1-a0-rollout-1-a0", 0, role="rollout"),
        node("n7", "x-driver-0-a0", 0, role="driver"),
        node("n8", None, 0),
    ]
    assert pod_nodes([*others, FIRST], 2, 2) is None
    assert pod_nodes([*others, FIRST, SECOND], 2, 2) == ["n0", "n1"]
    assert pod_nodes([FIRST, SECOND], 1, 2) == ["n0"]


def test_a_pod_that_offers_too_little_is_not_there() -> None:
    assert pod_nodes([FIRST, SECOND], 2, 4) is None


def test_a_machine_without_pods_stands_for_all_of_them() -> None:
    assert pod_nodes([node("n0", None, 4)], 2, 2) == ["n0", "n0"]
    assert pod_nodes([node("n0", None, 3)], 2, 2) is None


ATTEMPTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12), st.booleans()), max_size=20)


@given(ATTEMPTS, st.randoms(use_true_random=False))
def test_each_pod_has_the_living_node_of_its_newest_attempt(listed: list[tuple[int, int, bool]], random: Any) -> None:
    nodes = [
        node(f"{index}", f"x-trainer-{place}-a{attempt}", alive=alive)
        for index, (place, attempt, alive) in enumerate(listed)
    ]
    chosen = pod_nodes(nodes, 4, 2)
    shuffled = list(nodes)
    random.shuffle(shuffled)
    assert pod_nodes(shuffled, 4, 2) == chosen
    living = [
        [
            f"{index}"
            for index, (where, attempt, alive) in enumerate(listed)
            if where == place and alive and attempt == max(number for other, number, _ in listed if other == place)
        ]
        for place in range(4)
    ]
    if all(len(nodes) == 1 for nodes in living):
        assert chosen == [nodes[0] for nodes in living]
    else:
        assert chosen is None


def test_a_pod_with_fewer_gpus_than_ranks_is_named_with_a_cure() -> None:
    def with_gpus(each: dict[str, Any], count: int) -> dict[str, Any]:
        return each | {"Resources": each["Resources"] | ({"GPU": float(count)} if count else {})}

    whole, failed, without = with_gpus(FIRST, 2), with_gpus(SECOND, 1), with_gpus(SECOND, 0)
    assert placement.gpu_shortage([whole, with_gpus(SECOND, 2)], 2) is None
    assert placement.gpu_shortage([FIRST, SECOND], 2) is None, "on CPUs"
    for short, found in ((failed, 1), (without, 0)):
        problem = placement.gpu_shortage([whole, short], 2)
        assert problem is not None
        assert f"finds {found} GPUs in the trainer pod x-trainer-1-a0, which has 2 ranks" in problem
        assert "longboat doctor" in problem
    assert placement.gpu_shortage([with_gpus(node("n9", None, 4), 4)] * 2, 2) is None, (
        "a machine that stands for all pods"
    )
    assert placement.gpu_shortage([with_gpus(node("n9", None, 4), 3)] * 2, 2) is not None
