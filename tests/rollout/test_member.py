from __future__ import annotations

from longboat_runtime.rollout.member import RolloutNode, rollout_nodes


def test_only_living_nodes_with_slots_count() -> None:
    nodes = [
        {
            "NodeID": "a",
            "Alive": True,
            "Resources": {"longboat-rollout": 2.0, "GPU": 1.0},
            "Labels": {"longboat.dev/pod": "p"},
        },
        {"NodeID": "b", "Alive": False, "Resources": {"longboat-rollout": 2.0}, "Labels": {}},
        {"NodeID": "c", "Alive": True, "Resources": {"longboat-trainer": 1.0}, "Labels": {}},
        {"NodeID": "d", "Alive": True, "Resources": {"longboat-rollout": 1.0}, "Labels": {}, "NodeName": "host"},
    ]
    assert rollout_nodes(nodes) == {"a": RolloutNode("a", "p", 2, 1), "d": RolloutNode("d", "host", 1, 0)}
