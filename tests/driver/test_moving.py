"""Whatever moves at whatever moment, nothing is lost, and no token is drawn twice unless an engine dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from longboat_runtime.rollout import fleet as module
from tests.driver.moving import POLICIES, Moves, at_once, run_job, run_many

# Jobs of a try, and tries: what happens in a job depends on the machine too, and a reshape seldom fails.
JOBS, TRIES = 10 * len(POLICIES), 20


def test_jobs_lose_nothing_while_their_responses_move() -> None:
    moves = Moves()
    for number in range(TRIES):
        moves += run_many(JOBS, seed=number * JOBS)
        if _has_seen_all(moves):
            break
    else:
        raise AssertionError(f"something never happened: {moves}")
    assert set(moves.by_policy) == set(POLICIES)


def _has_seen_all(moves: Moves) -> bool:
    often = min(moves.moved, moves.kills, moves.lost, moves.given_back, moves.drained) > 50
    now_and_then = min(moves.ended, moves.reshapes, moves.redrawn) > 5
    return often and now_and_then and min(moves.taken_back, moves.failed_reshapes) > 0


async def test_a_move_that_forgets_the_tokens_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "replace", lambda request, **_: request)
    with pytest.raises(AssertionError, match="drawn twice"):
        await _run_some(tmp_path)


async def _run_some(root: Path) -> None:
    with at_once():
        for seed in range(20):
            await run_job(root / str(seed), "Synchronous", seed, Moves(), kill=False)
