"""The line about the queue that people read."""

from __future__ import annotations

import pytest

from longboat_runtime.metrics.queue import queue_line


@pytest.mark.parametrize(
    ("waiting", "age", "line"),
    [
        (0, 0, None),
        (1, 0, "1 prompt, the oldest for 0 rounds"),
        (24, 1, "24 prompts, the oldest for 1 round"),
        (24, 3, "24 prompts, the oldest for 3 rounds"),
    ],
)
def test_the_queue_is_reported_while_something_waits(waiting: int, age: int, line: str | None) -> None:
    assert queue_line({"tail/queue_len": float(waiting), "tail/queue_age/max": float(age)}) == line


def test_nothing_is_reported_before_the_first_round() -> None:
    assert queue_line({}) is None
