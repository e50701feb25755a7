"""What the page of hostile responses without Kubernetes says, and when its bar is missed."""

from __future__ import annotations

from typing import Any

import pytest

from bench.local_graders.summary import missed, table

MACHINE = {"processor": "any", "cpus": 2, "kernel": "6"}
RUN = {"kind": "run", "commit": "abc", "machine": MACHINE, "settings": {"limit": 3.0}}


def lines(*, beyond: float = 0.5, right: bool = True, remaining: int = 0) -> list[dict[str, Any]]:
    graded = {
        "user": "root",
        "group": "multiplying programs",
        "name": "forks",
        "outcome": "timeout",
        "next_seconds": 0.2,
    }
    graded |= {"kind": "graded", "beyond_seconds": beyond, "next_right": right}
    return [RUN, graded, {"kind": "end", "user": "root", "left": remaining}]


def test_a_run_within_the_bar_meets_it() -> None:
    assert missed(lines()) == []
    page = table(lines())
    assert "| root | multiplying programs | 1 | 0.50 | 1 | 0.20 |" in page
    assert page.endswith("no process left. Met.\n")


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"beyond": 5.1}, "root: multiplying programs: forks ended 5.1 s late"),
        ({"right": False}, "the grade after root: multiplying programs: forks was wrong"),
        ({"remaining": 2}, "root: 2 processes were left"),
    ],
)
def test_what_misses_the_bar_is_named(changed: dict[str, Any], problem: str) -> None:
    assert missed(lines(**changed)) == [problem]
    assert f"Missed:\n\n* {problem}\n" in table(lines(**changed))
