"""A turn's caller only waits, whatever becomes of engines; these are stand-ins that draw a turn's tokens by its seed, one after another."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest

from longboat_runtime.rollout import turn_router
from longboat_runtime.rollout.turn_router import TurnEngines, TurnLost, TurnRouter
from longboat_runtime.samples import FinishReason, SampleId, Sampling, VersionSpan, continued_seed, joined
from longboat_runtime.turns import EngineDeaths, TurnReply, TurnRequest
from tests.support.waiting import eventually_async

LENGTH = 8


def asked(row: int = 0, number: int = 0) -> TurnRequest:
    return TurnRequest(
        SampleId(0, row, 0, 0), number, np.asarray([1, 2, 3], np.int32), 10 * row + number, Sampling(LENGTH)
    )


def reply_of(tokens: Sequence[int], spans: tuple[VersionSpan, ...], reason: FinishReason) -> TurnReply:
    logprobs = np.zeros(len(tokens), np.float32)
    return TurnReply(np.asarray(tokens, np.int32), logprobs, spans, reason, "", {"role": "assistant", "content": ""})


def drawn(request: TurnRequest, tokens: int, begun: Sequence[int] = ()) -> list[int]:
    """What every engine draws of a turn, behind what it has."""
    random = Random(continued_seed(request.seed, len(begun)))
    return [*begun, *(random.randrange(100) for _ in range(tokens - len(begun)))]


class Engine:
    """Draws `next` or all tokens of a turn: then it ends, or the engine is drained (or was it before), or loses it."""

    def __init__(self, version: int = 0) -> None:
        self.version = version
        self.asked: list[TurnRequest] = []
        self.drains_after: int | None = None
        self.loses = 0
        self.dies = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.cancelled = 0

    async def turn(self, request: TurnRequest, begun: TurnReply | None) -> TurnReply:
        self.asked.append(request)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.loses:
            self.loses -= 1
            raise TurnLost("the engine is gone", died=self.dies)
        before = [] if begun is None else begun.token_ids.tolist()
        end = LENGTH if self.drains_after is None else len(before) + self.drains_after
        tokens = drawn(request, min(LENGTH, end), before)
        spans = joined(begun.spans if begun else (), (VersionSpan(self.version, 0, len(tokens) - len(before)),))
        reason = FinishReason.LENGTH if len(tokens) == LENGTH else FinishReason.ABORT
        return reply_of(tokens, spans, reason)


def router_of(number: int = 1, **engines: Engine) -> TurnRouter:
    made = TurnRouter("job-envs-0")
    made.update(TurnEngines(number, engines))
    return made


async def test_a_trajectory_stays_with_its_engine() -> None:
    engines = {"a": Engine(), "b": Engine()}
    router = router_of(**engines)
    for number in range(5):
        for row in range(6):
            await router.turn(asked(row, number))
    rows = [{request.sample.row for request in engine.asked} for engine in engines.values()]
    assert rows[0].isdisjoint(rows[1])
    assert [*map(len, rows)] == [3, 3]


async def test_a_lost_turn_is_drawn_again_by_its_seed() -> None:
    engines = {"a": Engine(), "b": Engine()}
    for engine in engines.values():
        engine.loses = 1
    router = router_of(**engines)
    turn = asyncio.create_task(router.turn(asked(7)))
    await eventually_async(lambda: sum(len(engine.asked) for engine in engines.values()) == 2)
    router.update(TurnEngines(2, {"c": Engine()}))
    assert (await turn).token_ids.tolist() == drawn(asked(7), LENGTH)


async def test_a_drained_turn_continues_elsewhere_with_its_tokens() -> None:
    """Also if the engine that it goes to loses it: it then has what it had from the first."""
    first, second, third = Engine(1), Engine(2), Engine(3)
    first.drains_after, second.loses = 3, 1
    router = router_of(a=first)
    turn = asyncio.create_task(router.turn(asked(4)))
    await eventually_async(lambda: first.asked)
    router.update(TurnEngines(2, {"b": second}))
    await eventually_async(lambda: second.asked)
    router.update(TurnEngines(3, {"c": third}))
    reply = await turn
    begun = drawn(asked(4), 3)
    assert reply.token_ids.tolist() == drawn(asked(4), LENGTH, begun)
    assert reply.spans == (VersionSpan(1, 0, 3), VersionSpan(3, 3, LENGTH))


async def test_without_engines_a_turn_waits_for_the_first() -> None:
    router = TurnRouter("job-envs-0")
    turn = asyncio.create_task(router.turn(asked()))
    await asyncio.sleep(0)
    router.update(TurnEngines(1, {"a": Engine()}))
    assert (await turn).finish_reason is FinishReason.LENGTH


async def test_an_engine_that_was_out_of_reach_for_a_moment_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver has seen nothing of it, so no news comes."""
    monkeypatch.setattr(turn_router, "RETRY_SECONDS", 0.001)
    engine = Engine()
    engine.loses = 3
    assert (await router_of(a=engine).turn(asked())).token_ids.tolist() == drawn(asked(), LENGTH)
    assert len(engine.asked) == 4


async def test_a_turn_with_which_engine_after_engine_dies_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_router, "RETRY_SECONDS", 0.001)
    engines = {name: Engine() for name in "abcd"}
    for engine in engines.values():
        engine.loses, engine.dies = 100, True
    with pytest.raises(EngineDeaths, match="3 engines have died with turn 2 of sample e0r5a0s0"):
        await router_of(**engines).turn(asked(5, 2))


async def test_a_dead_engine_that_is_tried_until_the_news_of_its_death_has_died_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turn_router, "RETRY_SECONDS", 0.001)
    dead = Engine()
    dead.loses, dead.dies = 10**6, True
    router = router_of(a=dead)
    turn = asyncio.create_task(router.turn(asked(5, 2)))
    await eventually_async(lambda: len(dead.asked) > 3)
    router.update(TurnEngines(2, {"b": Engine()}))
    assert (await turn).token_ids.tolist() == drawn(asked(5, 2), LENGTH)


async def test_an_older_table_changes_nothing() -> None:
    old, new = Engine(), Engine()
    router = router_of(2, a=new)
    router.update(TurnEngines(1, {"a": old}))
    await router.turn(asked())
    assert (len(old.asked), len(new.asked)) == (0, 1)


async def test_who_no_longer_wants_a_turn_ends_it() -> None:
    engine = Engine()
    engine.gate.clear()
    turn = asyncio.create_task(router_of(a=engine).turn(asked()))
    await eventually_async(lambda: engine.asked)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert engine.cancelled == 1


async def test_what_no_engine_can_draw_is_the_callers_error() -> None:
    class Strict(Engine):
        async def turn(self, request: TurnRequest, begun: TurnReply | None) -> TurnReply:
            raise ValueError("an empty prompt")

    with pytest.raises(ValueError, match="empty"):
        await router_of(a=Strict()).turn(asked())
