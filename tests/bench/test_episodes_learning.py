"""The tool game of the learning benchmark, and its bar."""

import json
import random

from bench.episodes_learning.base import CALL, END_CALL, played, row
from bench.episodes_learning.summary import missed, table

TRAINING = {"kind": "training", "held_out": [0.2, 0.4, 0.8], "seconds": 100.0}


def test_pointers_lead_to_the_answer() -> None:
    for seed in range(100):
        task = row(random.Random(seed))
        place = task["prompt"]
        while not place.isdigit():
            place = task["places"][place]
        assert place == task["answer"]


def test_a_careless_player_calls_the_tool_or_answers() -> None:
    rng = random.Random(0)
    for _ in range(100):
        *calls, answer = [text.removesuffix("<eos>") for text, own in played(row(rng), rng) if own]
        assert answer.isdigit()
        for call in calls:
            assert call.startswith(CALL)
            assert call.endswith(END_CALL)
            assert json.loads(call.removeprefix("<tool_call>").removesuffix("</tool_call>"))["name"] == "look"


def test_seven_of_ten_seeds_have_to_learn() -> None:
    run = [{"kind": "run"}, *({**TRAINING, "seed": seed} for seed in range(10))]
    assert missed(run) == []
    run = [line | ({"held_out": [0.2, 0.4]} if line.get("seed", 9) < 4 else {}) for line in run]
    assert missed(run) == ["6 of 10 seeds learned the game"]
    assert "| 9 | 0.200 | 0.800 | yes | 100 |" in table(run)
