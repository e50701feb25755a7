"""The page of launches, and its bar."""

from bench.episodes.summary import missed, table

RUN = [
    {"kind": "run"},
    {"kind": "launches", "at_once": 1, "seconds": [0.01, 0.02, 0.03], "cpu_seconds": 0.015},
    {"kind": "launches", "at_once": 16, "seconds": [0.1, 0.2, 0.3], "cpu_seconds": 0.02},
]


def test_the_bar_is_for_launches_one_at_a_time() -> None:
    assert missed(RUN) == []
    slow = [RUN[0], {**RUN[1], "seconds": [0.06] * 3}]
    assert missed(slow) == ["a launch takes 60 ms"]


def test_a_row_for_each_number_at_once() -> None:
    assert "| 1 | 20.0 |" in table(RUN)
    assert "| 16 | 200.0 |" in table(RUN)
