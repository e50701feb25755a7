"""Whatever moves at whatever moment, nothing is lost, and no token is drawn twice unless an engine dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from longboat_runtime.rollout import fleet as module
from tests.driver.moving import POLICIES, Moves, run_job, run_many


def test_jobs_lose_nothing_while_their_responses_move() -> None:
    moves = run_many(10 * len(POLICIES), seed=0)
    assert set(moves.by_policy) == set(POLICIES)
    assert min(moves.moved, moves.kills, moves.lost) > 100


async def test_a_move_that_forgets_the_tokens_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "replace", lambda request, **_: request)
    with pytest.raises(AssertionError, match="drawn twice"):
        await _run_some(tmp_path)


async def _run_some(root: Path) -> None:
    for seed in range(20):
        await run_job(root / str(seed), "Synchronous", seed, Moves(), kill=False)
