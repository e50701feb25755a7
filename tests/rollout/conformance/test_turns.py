"""Trajectories of many turns in a real engine: their prefixes, their steps, their log-probs, and turns that are ended, moved or cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from longboat_runtime.rollout.arguments import CPU_TURN_BLOCK
from longboat_runtime.rollout.engine import EngineConfig, EngineDead, TurnParsers
from longboat_runtime.samples import FinishReason, GeneratedSample, SampleId, Sampling, Segment, VersionSpan
from longboat_runtime.trainer import attention
from longboat_runtime.trainer.batch import WeightedSegment, build_batch
from longboat_runtime.trainer.forward import frozen_logprobs
from longboat_runtime.trainer.machine import MACHINE
from longboat_runtime.trainer.self_check import choose_attention
from longboat_runtime.trajectories import Turn, trajectory
from longboat_runtime.turns import TurnReply, TurnRequest
from longboat_runtime.weights.gate import PublicationRefused
from longboat_runtime.weights.publication import WeightPublication
from tests.rollout.conformance.hosted import HostedEngine, lent
from tests.rollout.reference import ReferenceModel
from tests.support.tiny_model import build_tiny_model
from tests.support.waiting import eventually_async

SESSIONS, TURNS = 16, 6
LONG = 480


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=["in-process", pytest.param("spawned", marks=pytest.mark.extended)])
def engine(request: pytest.FixtureRequest, directory: Path) -> Any:
    """With sequences and KV cache for all sessions."""
    config = EngineConfig(
        "e", str(directory), "float32", 2 * SESSIONS, kv_cache_bytes=2**26, enforce_eager=True, parsers=TurnParsers()
    )
    yield from lent(config, request, request.param)


@pytest.fixture(scope="module")
def reference(engine: HostedEngine, directory: Path) -> ReferenceModel:
    model = ReferenceModel(directory)
    engine.update_weights(model.publication())
    return model


def asked(row: int, number: int = 0, tokens: int = LONG, prompt: Sequence[int] = ()) -> TurnRequest:
    prompt_ids = np.asarray(prompt or [4 + (row * 7 + i) % 200 for i in range(8 + row)], np.int32)
    return TurnRequest(SampleId(0, row, 0, 0), number, prompt_ids, 1000 * row + number, Sampling(tokens))


# In the engine's process


@dataclass
class Played:
    """The turns of each session; what vLLM took from its prefix cache, and might have; and turns that missed a step."""

    turns: list[list[Turn]] = field(default_factory=list)
    cached: int = 0
    cacheable: int = 0
    late: list[str] = field(default_factory=list)


class Watched:
    """Counts the steps of an in-process engine, which turns they begin with, and what they had in the prefix cache."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.steps = engine, 0
        self.arrived: dict[str, int] = {}
        self.late: list[str] = []
        self.cached = 0
        self._apply, self._begin, self._finish = engine._commands.apply, engine._begin_turn, engine._finish
        self._scheduler = engine._vllm.engine_core.engine_core.scheduler
        self._schedule = self._scheduler.schedule

    def __enter__(self) -> Watched:
        self.engine._commands.apply, self.engine._begin_turn = self._applied, self._begun
        self.engine._finish, self._scheduler.schedule = self._finished, self._scheduled
        return self

    def __exit__(self, *_: object) -> None:
        for name in ("_begin_turn", "_finish"):
            delattr(self.engine, name)
        del self.engine._commands.apply, self._scheduler.schedule

    def _begun(self, name: str, turn: Any) -> None:
        self.arrived[name] = self.steps
        self._begin(name, turn)

    def _applied(self, *, wait: bool) -> None:
        self.steps += 1
        self._apply(wait=wait)

    def _scheduled(self, *arguments: Any) -> Any:
        output = self._schedule(*arguments)
        own = {own_name: name for name, own_name in self.engine._own_names.items()}
        for request in output.scheduled_new_reqs:
            name = own.get(request.req_id)
            if name is not None and self.steps > self.arrived.pop(name) + 1:
                self.late.append(name)
        return output

    def _finished(self, name: str, output: Any) -> None:
        self.cached += output.num_cached_tokens or 0
        self._finish(name, output)


async def play(engine: Any, seed: int, longest_wait: int, publications: Sequence[WeightPublication] = ()) -> Played:
    """Plays episodes that take up to `longest_wait` steps of the engine between turns; publishes while they run."""
    with Watched(engine) as watched:
        played = Played()

        async def session(row: int) -> list[Turn]:
            random, tokens, turns = Random(f"{seed}/{row}"), list[int](), list[Turn]()
            for number in range(TURNS):
                context = [random.randrange(4, 260) for _ in range(random.randint(8, 99))]
                # The last token that was drawn has no keys and values yet.
                played.cacheable += max(0, len(tokens) - 1) // CPU_TURN_BLOCK * CPU_TURN_BLOCK
                tokens += context
                reply = await engine.turn(asked(row, number, random.randint(8, 60), tokens), None)
                tokens += reply.token_ids.tolist()
                turns.append(
                    Turn(
                        np.asarray(context, np.int32),
                        reply.token_ids,
                        reply.logprobs,
                        reply.spans,
                        number - 1 if number else None,
                    )
                )
                due = watched.steps + random.randint(0, longest_wait)
                await eventually_async(lambda due=due: watched.steps >= due or not engine._running)
            return turns

        async def publish() -> None:
            for number, publication in enumerate(publications, 1):
                due = 20 * number
                await eventually_async(lambda due=due: watched.steps >= due)
                await asyncio.to_thread(engine.update_weights, publication)

        *played.turns, _ = await asyncio.gather(*map(session, range(SESSIONS)), publish())
        played.cached, played.late = watched.cached, watched.late
    return played


async def draw(engine: Any, requests: Sequence[TurnRequest], begun: Mapping[int, TurnReply]) -> list[TurnReply]:
    """Draws turns together; some continue."""
    return await asyncio.gather(*(engine.turn(one, begun.get(one.sample.row)) for one in requests))


async def draw_until_ended(engine: Any, requests: Sequence[TurnRequest], tokens: int) -> list[TurnReply]:
    """Ends all turns once the engine has drawn some tokens."""
    engine.take_load()
    drawing, drawn = asyncio.ensure_future(draw(engine, requests, {})), 0

    def look() -> bool:
        nonlocal drawn
        drawn += engine.take_load().generated_tokens
        return drawn >= tokens

    await eventually_async(look)
    engine.end_turns()
    return await drawing


async def cancel(engine: Any, request: TurnRequest) -> bool:
    """Whether a turn that is cancelled runs no more."""
    drawing = asyncio.ensure_future(engine.turn(request, None))
    await eventually_async(lambda: engine._running)
    drawing.cancel()
    with suppress(asyncio.CancelledError):
        await drawing
    await eventually_async(lambda: not engine._running)
    return drawing.cancelled() and not engine._outbox._promised


async def refused(engine: Any, requests: Sequence[TurnRequest], publication: WeightPublication) -> list[str]:
    """What turns raise, during which and after which the engine refuses a publication."""
    drawing = [asyncio.ensure_future(engine.turn(one, None)) for one in requests]
    await eventually_async(lambda: len(engine._running) == len(requests))
    with suppress(PublicationRefused):
        await asyncio.to_thread(engine.update_weights, publication)
    drawing.append(asyncio.ensure_future(engine.turn(requests[0], None)))
    results = await asyncio.gather(*drawing, return_exceptions=True)
    return [type(result).__name__ for result in results]


async def shut_down(engine: Any, request: TurnRequest) -> str:
    """What a turn raises whose engine ends."""
    drawing = asyncio.ensure_future(engine.turn(request, None))
    await eventually_async(lambda: engine._running)
    await asyncio.to_thread(engine.shutdown)
    results = await asyncio.gather(drawing, return_exceptions=True)
    with pytest.raises(EngineDead):
        await engine.turn(request, None)
    return type(results[0]).__name__


# In the test's


def in_process_only(engine: HostedEngine) -> None:
    if engine.spawned:
        pytest.skip("its steps are in another process")


def trained_logprobs(directory: Path, segments: Sequence[Segment]) -> np.ndarray:
    """Those of the trainer's own code: one forward over whole trajectories, several in a bin."""
    attention.register()
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    model.set_attn_implementation(choose_attention(model.config, MACHINE))
    samples = [
        GeneratedSample(SampleId(0, row, 0, 0), (segment,), FinishReason.STOP, "", "e")
        for row, segment in enumerate(segments)
    ]
    weighted = [WeightedSegment(sample, 0.0, 1.0) for sample in samples]
    batch = build_batch(weighted, torch.device("cpu"), packed=attention.packs(model))
    return frozen_logprobs(model, batch, platform=MACHINE).numpy()


@pytest.mark.parametrize("longest_wait", [0, pytest.param(40, id="paces")])
def test_trajectories_find_their_prefix_and_no_turn_waits(
    engine: HostedEngine, reference: ReferenceModel, directory: Path, longest_wait: int
) -> None:
    in_process_only(engine)
    played = engine.play(play, longest_wait, longest_wait)
    assert played.late == []
    assert played.cached >= 0.95 * played.cacheable > 0
    segments = [trajectory(turns).segments[0] for turns in played.turns]
    drawn = np.concatenate([segment.logprobs for segment in segments])
    assert len(drawn) > SESSIONS * TURNS
    assert np.abs(trained_logprobs(directory, segments) - drawn).max() < 1e-4


def test_publications_come_between_and_during_turns(engine: HostedEngine, reference: ReferenceModel) -> None:
    in_process_only(engine)
    publications = []
    for _ in range(3):
        reference.step(0.02)
        publications.append(reference.publication())
    played = engine.play(play, 7, 20, publications)
    versions = {span.version for turns in played.turns for turn in turns for span in turn.spans}
    assert len(versions) > 1
    for row, turns in enumerate(played.turns[::5]):
        context: list[int] = []
        for turn in turns:
            context += turn.context.tolist()
            segment = Segment.single_turn(np.asarray(context, np.int32), turn.token_ids, turn.logprobs, turn.spans)
            sample = GeneratedSample(SampleId(0, row, 0, 0), (segment,), FinishReason.STOP, "", "e")
            assert turn.spans[-1].end == len(turn.token_ids)
            assert reference.difference(sample) < 1e-4
            context += turn.token_ids.tolist()


def test_a_turn_that_is_ended_continues_with_its_tokens(engine: HostedEngine, reference: ReferenceModel) -> None:
    requests = [asked(row) for row in range(8)]
    whole = engine.play(draw, requests, {})
    parts = engine.play(draw_until_ended, requests, 40)
    begun = {row: part for row, part in enumerate(parts) if part.finish_reason is FinishReason.ABORT}
    assert begun
    for part, uninterrupted in zip(parts, whole, strict=True):
        tokens = part.token_ids.tolist()
        assert tokens == uninterrupted.token_ids.tolist()[: len(tokens)]
    moved = [request for request in requests if request.sample.row in begun]
    for request, reply in zip(moved, engine.play(draw, moved, begun), strict=True):
        part = begun[request.sample.row]
        count = len(part.token_ids)
        assert reply.token_ids.tolist()[:count] == part.token_ids.tolist()
        assert len(reply.token_ids) > count
        assert reply.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        assert reply.spans == (VersionSpan(reference.version, 0, len(reply.token_ids)),)
        segment = Segment.single_turn(request.prompt_ids, reply.token_ids, reply.logprobs, reply.spans)
        sample = GeneratedSample(request.sample, (segment,), reply.finish_reason, reply.text, "e")
        assert reference.difference(sample) < 1e-4
        assert reply.message == {"role": "assistant", "content": reply.text}


def test_the_same_turn_is_the_same_in_other_company(engine: HostedEngine, reference: ReferenceModel) -> None:
    """So what an engine has lost another one draws again."""
    requests = [asked(row, tokens=60) for row in range(8)]
    together = engine.play(draw, requests, {})
    for request in requests[::3]:
        (alone,) = engine.play(draw, [request], {})
        assert alone.token_ids.tolist() == together[request.sample.row].token_ids.tolist()


def test_text_has_special_tokens_but_not_what_ended_the_turn(engine: HostedEngine, reference: ReferenceModel) -> None:
    request = asked(1, tokens=60)
    (whole,) = engine.play(draw, [request], {})
    stop = next(letter for letter in whole.text if letter.isascii() and letter.isalnum())
    stopped = replace(request, sampling=replace(request.sampling, stop=(stop,)))
    (reply,) = engine.play(draw, [stopped], {})
    assert reply.finish_reason is FinishReason.STOP
    assert reply.text.rstrip("\ufffd") == whole.text[: whole.text.index(stop)].rstrip("\ufffd")
    last = int(whole.token_ids[len(whole.token_ids) // 2])
    ended = replace(request, sampling=replace(request.sampling, stop_token_ids=(last,)))
    (reply,) = engine.play(draw, [ended], {})
    count = whole.token_ids.tolist().index(last)
    assert reply.token_ids.tolist() == whole.token_ids.tolist()[: count + 1]
    assert whole.text.startswith(reply.text.rstrip("\ufffd"))


def test_a_turn_that_it_cannot_draw_harms_nothing(engine: HostedEngine, reference: ReferenceModel) -> None:
    good = asked(0, tokens=4)
    bad = [
        replace(good, prompt_ids=np.zeros(0, np.int32)),
        replace(good, prompt_ids=np.asarray([5, 100_000], np.int32)),
        replace(good, prompt_ids=np.full(1024, 5, np.int32)),
        replace(good, sampling=replace(good.sampling, stop=("",))),
        replace(good, sampling=replace(good.sampling, max_tokens=0)),
    ]
    for one in bad:
        with pytest.raises(ValueError, match="turn 0 of sample e0r0a0s0"):
            engine.play(draw, [one], {})
    assert len(engine.play(draw, [good], {})) == 1


def test_a_cancelled_turn_is_ended(engine: HostedEngine, reference: ReferenceModel) -> None:
    assert engine.play(cancel, asked(3))


def test_turns_are_lost_with_a_refused_publication(engine: HostedEngine, reference: ReferenceModel) -> None:
    in_process_only(engine)
    good = reference.publication()
    damaged = replace(good, payload=replace(good.payload, checksum="0" * 32))
    results = engine.play(refused, [asked(row) for row in range(4)], damaged)
    assert results[-1] == "PublicationRefused"
    assert {*results} <= {"PublicationRefused", "TurnReply"}
    engine.update_weights(good)
    assert len(engine.play(draw, [asked(0, tokens=4)], {})) == 1


def test_turns_are_lost_with_their_engine(engine: HostedEngine, reference: ReferenceModel) -> None:
    assert engine.play(shut_down, asked(2)) in ("EngineDead", "TurnReply")
