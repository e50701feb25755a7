"""What counts as contained, what is timed, and what the summary says of it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.sandbox.summary import missed, table, write
from longboat_graders.messages import FunctionOutcome, OutcomeKind
from longboat_graders.result import RewardSample
from tests.reward.containment import tried
from tests.reward.hostile_responses import RESPONSES, SAMPLE, Harm

RUN = {"kind": "run", "commit": "abc", "machine": {"processor": "any", "cpus": 2, "kernel": "6"}}
FORGING = next(RESPONSES[name] for name in SAMPLE if RESPONSES[name].harm is Harm.FORGES)
VICTIM = cast("Any", SimpleNamespace(pid=os.getpid(), poll=lambda: None))


class Graders:
    """Grade the hostile sample once there is one beside it, and that one as soon as the next one is there.

    `scores` are those of the hostile sample, the next one and the one beside it.
    """

    def __init__(self, *scores: float) -> None:
        self._hostile, self._next, self._beside = (FunctionOutcome(OutcomeKind.SCORED, score) for score in scores)
        self._beside_begun, self._next_begun = asyncio.Event(), asyncio.Event()

    async def grade(
        self, reward: str, sample: RewardSample, seconds: float, seed: int, own: float | None = None
    ) -> FunctionOutcome:
        """By the order of the honest samples."""
        if "square" in sample.text:
            await self._beside_begun.wait()
            return self._hostile
        if self._beside_begun.is_set():
            self._next_begun.set()
            return self._next
        self._beside_begun.set()
        await self._next_begun.wait()
        return self._beside


@pytest.mark.parametrize(
    ("scores", "harm"),
    [
        ((0.0, 1.0, 1.0), None),
        ((1.0, 1.0, 1.0), "it got what it wanted"),
        ((0.0, 0.0, 1.0), "the grade next"),
        ((0.0, 1.0, 0.0), "the grade beside"),
    ],
)
async def test_the_next_sample_follows_the_hostile_one_at_once(scores: tuple[float, ...], harm: str | None) -> None:
    clock = iter([7.0, 7.5])
    result = await tried(cast("Any", Graders(*scores)), FORGING, VICTIM, lambda: next(clock))
    assert result.next_seconds == 0.5
    assert result.harm is None if harm is None else result.harm is not None and result.harm.startswith(harm)


def lines(variants: int = 200, **changed: Any) -> list[dict[str, Any]]:
    """A run whose last variant is as given."""
    found = [RUN]
    for number in range(variants):
        last = changed if number == variants - 1 else {}
        line = {"kind": "tried", "variant": f"v{number}", "group": f"class {number % 12}", "harm": None}
        found.append({**line, "next_seconds": 0.5 + number / 1e3, **{k: v for k, v in last.items() if k != "without"}})
        found.append({"kind": "unprotected", "variant": f"v{number}", "harm": last.get("without", "much")})
    return found


@pytest.mark.parametrize(
    ("run", "problem"),
    [
        (lines(199), "199 variants of 12 classes, not 200 of 12, have been tried"),
        (lines(next_seconds=2.01), "the grade after v199 took 2.01 s"),
        (lines(harm="processes [1]"), "v199 did harm (processes [1])"),
        (lines(without=None), "v199 does no harm without the sandbox"),
    ],
)
def test_a_run_that_misses_the_bar_is_written_and_ends_with_an_error(
    tmp_path: Path, run: list[dict[str, Any]], problem: str
) -> None:
    raw = tmp_path / "sandbox.jsonl"
    raw.write_text("".join(json.dumps(line) + "\n" for line in run))
    with pytest.raises(SystemExit):
        write(raw)
    assert missed(run) == [problem]
    assert f"Missed:\n\n* {problem}\n" in (tmp_path / "sandbox.md").read_text()


def test_the_table_has_a_line_for_each_class_and_the_slowest_next_grade() -> None:
    text = table(lines())
    assert "| class 7 | 17 | 17 | 17 | 0.70 |" in text
    assert "| all 12 classes | 200 | 200 | 200 | 0.70 |" in text
    assert "Met." in text
