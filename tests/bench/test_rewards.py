"""The mix of responses, and what the summary says of measured rounds."""

from collections import Counter

import pytest

from bench.rewards.measure import ARMS
from bench.rewards.mix import HANGING, HARD_LIMIT, Contention, Fate, Mix
from bench.rewards.summary import page


def test_the_mix_is_the_same_for_the_same_seed_and_what_it_says() -> None:
    mix = Mix(3)
    rows = [row for row in range(500) for _ in range(40)]
    responses = mix.responses(rows, 1)
    assert responses == Mix(3).responses(rows, 1)
    assert responses != mix.responses(rows, 2)
    seconds = sorted(problem.seconds for problem in mix.problems)
    assert seconds[-1] == pytest.approx(100 * seconds[0], rel=0.5)
    fates = Counter(response.fate for response in responses)
    hanging = fates[Fate.ASLEEP] + fates[Fate.BUSY]
    assert hanging == pytest.approx(HANGING * len(rows), rel=0.15)
    assert fates[Fate.ASLEEP] == pytest.approx(hanging / 2, rel=0.15)
    ending = [of for of in responses if of.fate in (Fate.CORRECT, Fate.WRONG)]
    assert all(0 < of.cpu_seconds <= of.seconds < HARD_LIMIT for of in ending)


def test_contention_changes() -> None:
    contention = Contention(1, 3600.0)
    assert {contention.at(second) for second in range(3600)} == set(Contention.LEVELS)


def test_the_summary_says_how_much_less_learned_limits_take() -> None:
    run = {
        "kind": "run",
        "machine": {"processor": "any", "cpus": 2, "kernel": "6"},
        "commit": "abc",
        "settings": {"problems": 3, "processes": 2, "scale": 6.0},
    }
    fates = dict.fromkeys((fate.value for fate in Fate), 0)
    rounds = [
        {
            "kind": "round",
            "arm": arm,
            "round": number,
            "contention": number,
            "grades": 8,
            "seconds": seconds,
            "cpu": 2 * seconds,
            "occupied": 3 * seconds,
            "killed": fates | {"busy": 2, "correct": 1},
            "by_limit": fates | ({"correct": 1} if arm == "learned" else {}),
            "correct": 4,
            "audits": 10,
            "wrong_audits": 0,
        }
        for number in (1, 2)
        for arm, seconds in zip(ARMS, (9.0, 3.0), strict=True)
    ]
    text = page([run, *rounds])
    assert "| hard | 36.0 | 54.0 | 18.0 | 6 | 0 | 0 | 0.00% |" in text
    assert "| learned | 12.0 | 18.0 | 6.0 | 4 | 2 | 2 | 25.00% |" in text
    assert "take 3.00 x less CPU seconds and 3.00 x less occupied seconds" in text
    assert "In 1 rounds other processes wanted the CPUs too" in text
