"""The tool game of the learning benchmark, and its bar."""

import json
import random
from typing import Any

from bench.episodes_learning.base import CALLS, END_CALL, played, row
from bench.episodes_learning.environment import WAYS
from bench.episodes_learning.summary import missed, table

TRAINING = {"kind": "training", "held_out": [0.2, 0.4, 0.8], "seconds": 100.0}


def test_roads_lead_to_the_answer() -> None:
    for seed in range(100):
        task = row(random.Random(seed))
        content = task["prompt"]
        while not content.isdigit():
            way, place = content
            content = task["roads"][WAYS[way]][place]
        assert content == task["answer"]


def test_a_careless_player_calls_the_tool_or_answers() -> None:
    rng = random.Random(0)
    for _ in range(100):
        *calls, answer = [text.removesuffix("<eos>") for text, own in played(row(rng), rng) if own]
        assert answer.isdigit()
        for call in calls:
            assert call.startswith(tuple(CALLS.values()))
            assert call.endswith(END_CALL)
            assert json.loads(call.removeprefix("<tool_call>").removesuffix("</tool_call>"))["name"] in WAYS.values()


def test_seven_of_ten_seeds_have_to_learn() -> None:
    trainings: list[dict[str, Any]] = [{**TRAINING, "seed": seed} for seed in range(10)]
    run = [{"kind": "run"}, *trainings]
    assert missed(run) == []
    for training in trainings[:4]:
        training["held_out"] = [0.2, 0.4]
    assert missed(run) == ["6 of 10 seeds learned the game"]
    assert "| 9 | 0.200 | 0.800 | yes | 100 |" in table(run)
