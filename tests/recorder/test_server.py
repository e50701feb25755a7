"""The recorder over real sockets, as the clients of OpenAI and others see it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from longboat_crds.environments import MAX_EPISODES_PER_POD
from longboat_runtime.recorder import server
from longboat_runtime.recorder.record import Launch, Limits
from longboat_runtime.recorder.server import Bounds, Endpoint, Recorder
from longboat_runtime.trajectories import trajectory
from longboat_runtime.turns import EngineDeaths, TurnReply, TurnRequest
from tests.recorder.harnesses import answers_to
from tests.recorder.world import KINDS, MODEL, TOOLS, Engine, body_of, contexts_of, launch_of, says
from tests.support.waiting import DEADLINE_SECONDS, eventually_async

FIRST = [says("system", "Play."), says("user", "Begin.")]


class Gate:
    """An engine whose turns come once the gate is open."""

    def __init__(self, kinds: tuple[str, ...] = ("text",)) -> None:
        self.engine, self.open, self.begun = Engine("qwen3", kinds), asyncio.Event(), 0
        self.change: Callable[[TurnReply], TurnReply] = lambda reply: reply

    async def turn(self, request: TurnRequest) -> TurnReply:
        self.begun += 1
        await self.open.wait()
        return self.change(self.engine.draw(request))


@asynccontextmanager
async def serving(turns: Any, bounds: Bounds | None = None) -> AsyncIterator[Recorder]:
    recorder = Recorder(turns, contexts_of("qwen3"), MODEL, bounds or Bounds())
    await recorder.start()
    try:
        yield recorder
    finally:
        await recorder.stop()


@asynccontextmanager
async def episode(
    turns: Any, bounds: Bounds | None = None, launch: Launch | None = None, **client: Any
) -> AsyncIterator[tuple[Recorder, Endpoint, openai.AsyncOpenAI]]:
    async with serving(turns, bounds) as recorder:
        endpoint = recorder.open(launch or launch_of())
        options = {"max_retries": 0, **client}
        async with openai.AsyncOpenAI(base_url=endpoint.url, api_key=endpoint.secret, **options) as model:
            yield recorder, endpoint, model


def ask(model: openai.AsyncOpenAI, messages: Any, **more: Any) -> Awaitable[Any]:
    return model.chat.completions.create(model=MODEL, messages=messages, **more)


async def raw(endpoint: Endpoint, body: bytes, **headers: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Sends a request over a connection of its own."""
    port, _, path = endpoint.url.removeprefix("http://127.0.0.1:").partition("/")
    reader, writer = await asyncio.open_connection("127.0.0.1", int(port), limit=2**16)
    lines = [
        f"POST /{path}/chat/completions HTTP/1.1",
        "Host: recorder",
        f"Authorization: Bearer {endpoint.secret}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
    ]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    await writer.drain()
    return reader, writer


async def answer(reader: asyncio.StreamReader) -> Any:
    """Reads the JSON of an answer."""
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert b" 200 " in head.partition(b"\r\n")[0], head
    return json.loads(body)


def open_gate(kinds: tuple[str, ...] = ("text",)) -> Gate:
    gate = Gate(kinds)
    gate.open.set()
    return gate


async def test_a_client_of_openai_plays_an_episode() -> None:
    async with episode(open_gate(("call",))) as (recorder, endpoint, model):
        assert [served.id async for served in model.models.list()] == [MODEL]
        messages: list[Any] = list(FIRST)
        for _ in range(3):
            reply = await ask(model, messages, tools=TOOLS)
            [choice] = reply.choices
            assert choice.finish_reason == "tool_calls"
            [call] = choice.message.tool_calls
            result = says("tool", json.loads(call.function.arguments)["x"], tool_call_id=call.id)
            messages += [choice.message, result]
        assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
        recording = recorder.close(endpoint).recording
    [segment], *_ = trajectory(recording.turns)
    assert len(segment.trained) == 3
    assert [[message["role"] for message in each.new] for each in recording.exchanges] == [
        ["system", "user"],
        ["tool"],
        ["tool"],
    ]


async def test_log_probs_and_token_ids_on_request() -> None:
    gate = open_gate()
    async with episode(gate) as (_, _, model):
        reply = await ask(model, FIRST, logprobs=True, extra_body={"return_token_ids": True})
        plain = await ask(model, FIRST)
    turn, ids = gate.engine.drawn[0]
    assert (reply.prompt_token_ids, reply.choices[0].token_ids) == (turn.prompt_ids.tolist(), ids)
    tokens = reply.choices[0].logprobs.content
    assert "".join(token.token for token in tokens) == f"{reply.choices[0].message.content}<|im_end|>"
    assert all(-1 <= token.logprob <= 0 for token in tokens)
    assert plain.choices[0].logprobs is None
    assert not hasattr(plain, "prompt_token_ids")


async def test_a_stream_says_the_same() -> None:
    """Comments come while the turn is drawn; then all of it at once."""
    gate = Gate(("calls",))
    async with episode(gate, Bounds(comment_seconds=0.01)) as (recorder, endpoint, model):
        body = body_of(FIRST, stream=True, tools=TOOLS)
        reader, writer = await raw(endpoint, body)
        while (await reader.readline()) != b": drawing\n":
            pass
        gate.open.set()
        text = (await reader.read()).decode()
        writer.close()
        assert text.count("data: ") == 3
        assert "data: [DONE]" in text
        options: Any = {"stream": True, "stream_options": {"include_usage": True}}
        parts = [part async for part in await ask(model, FIRST, tools=TOOLS, **options)]
        whole = await ask(model, FIRST, tools=TOOLS)
        recording = recorder.close(endpoint).recording
    delta, end, usage = parts[0].choices[0].delta, parts[1].choices[0], parts[2].usage
    assert [(call.index, call.function.name) for call in delta.tool_calls] == [
        (number, call["function"]["name"]) for number, call in enumerate(recording.exchanges[1].message["tool_calls"])
    ]
    assert (end.finish_reason, usage.completion_tokens) == ("tool_calls", recording.exchanges[1].tokens)
    assert whole.choices[0].finish_reason == "tool_calls"
    assert len(recording.turns) == 3


async def test_reasoning_has_both_of_its_names() -> None:
    async with episode(open_gate(("reasoning",))) as (_, _, model):
        message = (await ask(model, FIRST)).choices[0].message
    assert message.reasoning == message.reasoning_content
    assert message.reasoning.startswith("well")


class TestDelivery:
    async def test_a_connection_that_closes_before_the_turn_is_drawn(self) -> None:
        gate = Gate()
        async with episode(gate) as (recorder, endpoint, _):
            _, writer = await raw(endpoint, body_of(FIRST))
            await eventually_async(lambda: gate.begun == 1)
            writer.close()
            await writer.wait_closed()
            reader, _ = await raw(endpoint, body_of(FIRST))
            gate.open.set()
            reply = await answer(reader)
            recording = recorder.close(endpoint).recording
        assert (gate.begun, recording.repeats, len(recording.turns)) == (1, 1, 1)
        assert reply["choices"][0]["message"]["content"] == recording.exchanges[0].message["content"]

    async def test_nobody_asks_again(self) -> None:
        gate = Gate()
        async with episode(gate) as (recorder, endpoint, _):
            _, writer = await raw(endpoint, body_of(FIRST))
            await eventually_async(lambda: gate.begun == 1)
            writer.transport.abort()
            gate.open.set()
            await eventually_async(lambda: len(gate.engine.drawn) == 1)
            recording = recorder.close(endpoint).recording
        assert (recording.turns, recording.undelivered) == ((), 1)

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_client_that_closes_while_the_answer_is_written(self, stream: bool) -> None:
        """The answer is larger than what the system takes for a client that doesn't read."""
        gate = open_gate()
        large = "x" * 2**25
        gate.change = lambda reply: dataclasses.replace(reply, message={**reply.message, "content": large})
        body = body_of(FIRST, stream=stream)
        async with episode(gate) as (recorder, endpoint, _):
            reader, writer = await raw(endpoint, body)
            await reader.readexactly(1000)
            writer.transport.abort()
            again, _ = await raw(endpoint, body)
            text = await again.read()
            recording = recorder.close(endpoint).recording
        assert large.encode() in text
        assert (gate.begun, recording.repeats, len(recording.turns)) == (1, 1, 1)

    async def test_the_clients_own_retries_get_the_turn_that_is_drawn(self) -> None:
        gate, options = Gate(), {"timeout": 0.05, "max_retries": 1000}
        async with episode(gate, **options) as (recorder, endpoint, model):
            asking = asyncio.ensure_future(ask(model, FIRST))
            await eventually_async(lambda: recorder._launches[0].record._repeats > 1)
            gate.open.set()
            await asking
            recording = recorder.close(endpoint).recording
        assert (gate.begun, len(recording.turns), recording.undelivered) == (1, 1, 0)

    async def test_equal_requests_at_once_are_new_draws(self) -> None:
        gate = Gate()
        async with episode(gate) as (recorder, endpoint, model):
            asking = [asyncio.ensure_future(ask(model, FIRST)) for _ in range(8)]
            await eventually_async(lambda: gate.begun == 8)
            gate.open.set()
            await asyncio.gather(*asking)
            recording = recorder.close(endpoint).recording
        assert len(recording.turns) == 8
        assert len({turn.seed for turn, _ in gate.engine.drawn}) == 8


class TestRefusals:
    async def test_errors_are_those_of_openai(self) -> None:
        async with episode(open_gate(), launch=launch_of(limits=Limits(10_000, turns=1))) as (_, endpoint, model):
            with pytest.raises(openai.BadRequestError, match="`n` can't be set") as refused:
                await ask(model, FIRST, n=2)
            assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "n")
            await ask(model, FIRST)
            with pytest.raises(openai.BadRequestError) as refused:
                await ask(model, FIRST, stream=True)
            assert refused.value.code == "episode_budget_exceeded"
            with pytest.raises(openai.NotFoundError, match="no model 'other'"):
                await model.chat.completions.create(model="other", messages=[{"role": "user", "content": "?"}])
            with pytest.raises(openai.NotFoundError, match="isn't served"):
                await model.responses.create(model=MODEL, input="?")
            for body, code in ((b"{", "invalid_json"), (body_of([says("user", "\ud800")]), "invalid_value")):
                reader, _ = await raw(endpoint, body)
                head, _, text = (await reader.read()).partition(b"\r\n\r\n")
                assert (head.split()[1], json.loads(text)["error"]["code"]) == (b"400", code)

    async def test_each_launch_has_its_secret(self) -> None:
        async with serving(open_gate()) as recorder:
            one, other = recorder.open(launch_of()), recorder.open(launch_of())
            assert one.url != other.url
            for url, key in ((one.url, other.secret), (one.url, ""), (f"{one.url}/../../9/v1", one.secret)):
                async with openai.AsyncOpenAI(base_url=url, api_key=key or "none", max_retries=0) as model:
                    with pytest.raises(openai.AuthenticationError):
                        await ask(model, FIRST)
                    with pytest.raises(openai.AuthenticationError):
                        await model.models.list()
            assert one.secret not in repr(one)
            reader, _ = await raw(dataclasses.replace(one, secret="\xe9"), body_of(FIRST))
            assert (await reader.readline()).split()[1] == b"401"

    async def test_a_large_body(self) -> None:
        async with episode(open_gate(), Bounds(body_bytes=1000)) as (_, _, model):
            with pytest.raises(openai.APIStatusError) as refused:
                await ask(model, [says("user", "x" * 1000)])
            assert (refused.value.status_code, refused.value.code) == (413, "request_too_large")

    async def test_too_many_requests_at_once(self) -> None:
        gate = Gate()
        async with episode(gate, Bounds(requests=2)) as (_, _, model):
            asking = [asyncio.ensure_future(ask(model, FIRST)) for _ in range(2)]
            await eventually_async(lambda: gate.begun == 2)
            with pytest.raises(openai.RateLimitError, match="2 open requests"):
                await ask(model, FIRST)
            gate.open.set()
            await asyncio.gather(*asking)
            await ask(model, FIRST)

    async def test_an_ended_launch_is_gone(self) -> None:
        gate = Gate()
        async with episode(gate, Bounds(comment_seconds=0.01)) as (recorder, endpoint, model):
            asking = asyncio.ensure_future(ask(model, FIRST))
            reader, _ = await raw(endpoint, body_of(FIRST, stream=True))
            await eventually_async(lambda: gate.begun == 2)
            played = recorder.close(endpoint)
            with pytest.raises(openai.APIStatusError) as refused:
                await asking
            assert (refused.value.status_code, refused.value.code) == (410, "episode_ended")
            assert b'"code":"episode_ended"' in await reader.read()
            with pytest.raises(openai.APIStatusError) as refused:
                await ask(model, FIRST)
            assert refused.value.status_code == 410
            with pytest.raises(KeyError):
                recorder.close(endpoint)
        assert played.recording.turns == ()

    async def test_a_turn_that_cannot_be_drawn_is_told_to_who_opened_the_launch(self) -> None:
        """The client only waits: no environment takes an engine's failure for an answer."""

        class Failing:
            async def turn(self, request: TurnRequest) -> TurnReply:
                raise EngineDeaths("three engines died")

        async with episode(Failing()) as (recorder, endpoint, model):
            asking = asyncio.ensure_future(ask(model, FIRST))
            assert isinstance(await recorder.failure(endpoint), EngineDeaths)
            assert not asking.done()
            assert recorder.close(endpoint).recording.turns == ()
            with pytest.raises(openai.APIStatusError, match="has ended"):
                await asking


async def test_seconds_in_the_environment_are_those_without_an_open_request(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(server, "time", SimpleNamespace(monotonic=lambda: now, time=lambda: 0.0))
    gate = Gate()
    async with episode(gate) as (recorder, endpoint, model):
        now += 3
        asking = [asyncio.ensure_future(ask(model, FIRST)) for _ in range(2)]
        await eventually_async(lambda: gate.begun == 2)
        now += 20
        gate.open.set()
        await asyncio.gather(*asking)
        await eventually_async(lambda: recorder._launches[0].requests == 0)
        now += 4
        played = recorder.close(endpoint)
    assert played.environment_seconds == 7
    assert [exchange.seconds for exchange in played.recording.exchanges] == [20, 20]


async def test_episodes_at_once_are_recorded_apart() -> None:
    """Each plays at a pace of its own; some requests are given up and sent again."""

    class Slow:
        def __init__(self) -> None:
            self.engine, self.dice = Engine("qwen3", KINDS), random.Random(0)

        async def turn(self, request: TurnRequest) -> TurnReply:
            for _ in range(self.dice.randrange(50)):
                await asyncio.sleep(0)
            return self.engine.draw(request)

    turns = Slow()
    async with serving(turns) as recorder:

        async def play(number: int) -> None:
            dice = random.Random(number)
            launch = dataclasses.replace(launch_of(seed=number), sample=launch_of().sample._replace(index=number))
            endpoint = recorder.open(launch)
            messages: list[Any] = list(FIRST)
            async with openai.AsyncOpenAI(base_url=endpoint.url, api_key=endpoint.secret) as model:
                for _ in range(5):
                    if dice.random() < 0.3:
                        _, writer = await raw(endpoint, body_of(messages, tools=TOOLS))
                        writer.transport.abort()
                    message = (await ask(model, messages, tools=TOOLS)).choices[0].message.model_dump()
                    messages = [*messages, message, *answers_to(message, dice)]
            recording = recorder.close(endpoint).recording
            [segment], *_ = trajectory(recording.turns)
            ids = segment.token_ids.tolist()
            drawn = {
                tuple(turn.prompt_ids.tolist()): tokens
                for turn, tokens in turns.engine.drawn
                if turn.sample.index == number
            }
            assert [drawn[tuple(ids[:start])] for start, _ in segment.trained] == [
                ids[start:end] for start, end in segment.trained
            ]
            assert len(segment.trained) == 5

        await asyncio.gather(*(play(number) for number in range(20)))


async def test_as_many_episodes_as_a_pod_may_play_connect_at_once() -> None:
    async with serving(open_gate()) as recorder:
        port = int(recorder.open(launch_of()).url.split(":")[2].partition("/")[0])
        with ExitStack() as connections:
            # Nobody accepts: the event loop waits for this.
            for _ in range(MAX_EPISODES_PER_POD // 2):
                connections.enter_context(socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_SECONDS))
