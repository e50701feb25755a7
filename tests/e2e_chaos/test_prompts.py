"""The audit that every cluster test and `make chaos` ends with finds what it is for."""

from __future__ import annotations

from pathlib import Path

from e2e.prompts import fates
from longboat_runtime.rounds.ledger import Ledger
from tests.timeline.history import GROUP, A, B, accepted, long_round, numbered, sample, short_round, start, train, write

FIRST = numbered([*start(), *short_round()])


async def test_a_prompt_that_waits_is_neither_lost_nor_doubled(tmp_path: Path) -> None:
    await write(tmp_path, 1, FIRST)
    found = fates(tmp_path)
    assert (found["drawn"], found["ended"], found["lost"], found["doubled"]) == (3, 2, [], [])


async def test_a_restart_that_keeps_every_prompt_is_clean(tmp_path: Path) -> None:
    position = await write(tmp_path, 1, FIRST)
    second = numbered([*start(5000, step=1), *long_round(5001)], 2, len(FIRST) + 1)
    await write(tmp_path, 2, second, position, accepted(FIRST))
    found = fates(tmp_path)
    assert (found["incarnations"], found["ended"], found["lost"], found["doubled"]) == (2, 3, [], [])


async def test_a_prompt_that_a_restart_forgot_is_lost(tmp_path: Path) -> None:
    position = await write(tmp_path, 1, FIRST)
    await write(tmp_path, 2, numbered(start(5000, step=1), 2, len(FIRST) + 1), position, Ledger(GROUP))
    assert fates(tmp_path)["lost"] == [str(B)]


async def test_a_prompt_that_is_trained_again_after_a_restart_is_doubled(tmp_path: Path) -> None:
    position = await write(tmp_path, 1, FIRST)
    again = train(5001, 2, 2, sample(A, 0), sample(A, 1))
    second = numbered([*start(5000, step=1), *again], 2, len(FIRST) + 1)
    await write(tmp_path, 2, second, position, accepted(FIRST))
    assert fates(tmp_path)["doubled"] == [str(A)]


async def test_a_start_that_has_written_nothing_yet_hides_nothing(tmp_path: Path) -> None:
    """Its log goes on from before the end of the one before: what came after that is dead."""
    position = await write(tmp_path, 1, FIRST)
    resumed = accepted(FIRST)
    await write(tmp_path, 2, numbered([*start(50, step=1), *long_round(51)], 2, len(FIRST) + 1), position, resumed)
    await write(tmp_path, 3, [], position, accepted(FIRST))
    found = fates(tmp_path)
    assert (found["ended"], found["lost"], found["doubled"]) == (2, [], [])
