"""What a request is, what bounds it, and what a launch has recorded."""

import gc
import json
import tracemalloc
from typing import Any

import pytest

from longboat_runtime.recorder.record import Beginning, Limits
from longboat_runtime.recorder.refusals import Refused
from longboat_runtime.samples import FinishReason, Sampling
from longboat_runtime.trajectories import trajectory
from tests.recorder.world import TOOLS, Client, body_of, client_of, says

FIRST = [says("system", "Play."), says("user", "Begin.")]


def then(messages: list[Any], reply: Any, text: str = "Go on.") -> list[Any]:
    return [*messages, reply, says("user", text)]


def refusal(client: Client, messages: list[Any], **more: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        client.ask(messages, **more)
    return refused.value


def spent(client: Client, *, branches: bool) -> Refused:
    """Plays until a budget is spent."""
    messages = FIRST
    for number in range(100):
        try:
            reply = client.ask(messages).message
        except Refused as error:
            return error
        messages = FIRST if branches and number % 3 == 2 else then(messages, reply)
    raise AssertionError("no end")


def test_a_conversation_is_one_segment() -> None:
    client = client_of()
    messages = FIRST
    for _ in range(4):
        messages = then(messages, client.ask(messages).message)
    recording = client.record.recording()
    [segment], reply, _ = trajectory(recording.turns)
    assert (len(segment.trained), reply) == (4, 0)
    assert [exchange.beginning for exchange in recording.exchanges] == ["first", None, None, None]
    assert [message for each in recording.exchanges for message in (*each.new, each.message)] == messages[:-1]
    assert [exchange.continues for exchange in recording.exchanges] == [None, 0, 1, 2]


def test_a_rewritten_history_begins_a_segment_and_says_where_it_differs() -> None:
    client = client_of(kinds=["text"])
    messages = then(FIRST, client.ask(FIRST).message)
    messages = then(messages, client.ask(messages).message)
    changed = [*messages[:2], says("assistant", "something else"), *messages[3:]]
    assert (client.ask(changed).beginning, client.ask(changed).differs) == (Beginning.MESSAGES, None), "an equal one"
    [_, _, third, _] = client.record.recording().exchanges
    assert third.differs == 2
    summary = client.ask([FIRST[0], says("user", "So far: nothing.")])
    assert (summary.beginning, summary.differs) == (Beginning.MESSAGES, 1)
    beginnings = [exchange.beginning for exchange in client.record.recording().exchanges]
    assert beginnings == ["first", None, "messages", "messages", "messages"]


def test_new_tools_begin_a_segment() -> None:
    client = client_of(kinds=["text"])
    messages = then(FIRST, client.ask(FIRST, tools=TOOLS).message)
    assert client.ask(messages, tools=TOOLS[:1]).beginning is Beginning.TOOLS
    assert client.ask(messages, tools=TOOLS).parent is not None
    assert client.ask(messages, tools=TOOLS, tool_choice="none").beginning is Beginning.TOOLS


def test_changed_reasoning_begins_a_segment() -> None:
    client = client_of(kinds=["reasoning"])
    reply = client.ask(FIRST).message
    assert client.ask(then(FIRST, {**reply, "reasoning": f" {reply['reasoning']}\n"})).parent is not None
    assert client.ask(then(FIRST, says("assistant", reply["content"]))).parent is not None, "it may be left out"
    other = client.ask(then(FIRST, {**reply, "reasoning": "I was told so."}))
    assert (other.parent, other.differs) == (None, 2)


def test_the_newest_of_equal_calls_is_continued() -> None:
    client = client_of(kinds=["text"])
    calls = [client.ask(FIRST) for _ in range(12)]
    same = [call for call in calls if call.message == calls[-1].message]
    assert len(same) > 1
    assert client.ask(then(FIRST, calls[-1].message)).parent is same[-1]


def test_a_delivered_call_is_meant_before_one_that_nobody_received() -> None:
    client = client_of(kinds=["odd"], seed=1)
    first = client.ask(FIRST)
    call, turn = client.begin(body_of(FIRST, user="another body"))
    assert turn is not None
    assert first.reply is not None
    client.record.complete(call, first.reply, 0.1)
    client.record.close(call)
    assert client.ask(then(FIRST, first.message)).parent is first


def test_what_nobody_received_is_context_only() -> None:
    """A client that has read all of an answer but its end goes on from it: the next turn keeps its exact context."""
    client = client_of(kinds=["text"])
    lost = client.ask(FIRST, delivered=False)
    call = client.ask(then(FIRST, lost.message))
    assert call.parent is lost
    recording = client.record.recording()
    [turn], [exchange] = recording.turns, recording.exchanges
    assert (turn.continues, exchange.beginning) == (None, "first")
    assert turn.context.tolist() == client.engine.drawn[1][0].prompt_ids.tolist()
    assert recording.undelivered == 1
    assert exchange.new == [*FIRST, lost.message, says("user", "Go on.")]


class TestRepeats:
    def test_a_request_after_a_closed_connection_gets_the_same_answer_once(self) -> None:
        client = client_of()
        lost = client.ask(FIRST, delivered=False)
        assert client.ask(FIRST) is lost
        assert lost.delivered
        assert client.ask(FIRST) is not lost
        assert (len(client.engine.drawn), client.record.recording().repeats) == (2, 1)

    def test_its_answer_is_kept_until_somebody_receives_it(self) -> None:
        client = client_of()
        lost = client.ask(FIRST, delivered=False)
        assert client.ask(FIRST, delivered=False) is lost
        assert client.ask(FIRST) is lost

    def test_another_body_is_no_repeat(self) -> None:
        client = client_of()
        lost = client.ask(FIRST, delivered=False)
        assert client.ask(FIRST, max_tokens=500) is not lost

    def test_open_requests_with_equal_bodies_are_new_draws(self) -> None:
        client = client_of()
        (first, one), (second, other) = client.begin(body_of(FIRST)), client.begin(body_of(FIRST))
        assert first is not second
        assert one is not None
        assert other is not None
        assert one.prompt_ids.tolist() == other.prompt_ids.tolist()
        assert one.seed != other.seed

    def test_a_retry_whose_old_connection_is_not_known_to_be_closed_gets_the_same_answer(self) -> None:
        client = client_of()
        call, turn = client.begin(body_of(FIRST))
        assert client.begin(body_of(FIRST), retried=True) == (call, None)
        client.record.close(call)
        client.complete(call, turn)
        client.record.deliver(call)
        assert call.delivered
        assert client.begin(body_of(FIRST), retried=True)[0] is not call, "it was delivered"

    def test_two_lost_answers_go_to_two_requests(self) -> None:
        client = client_of()
        lost = [client.begin(body_of(FIRST)) for _ in range(2)]
        for call, turn in lost:
            client.complete(call, turn)
            client.record.close(call)
        assert [client.begin(body_of(FIRST))[0] for _ in lost] == [call for call, _ in lost]


class TestBounds:
    def test_turns(self) -> None:
        client = client_of(limits=Limits(10_000, turns=2))
        messages = then(FIRST, client.ask(FIRST).message)
        client.ask(messages)
        error = refusal(client, FIRST)
        assert (error.status, error.code) == (400, "episode_budget_exceeded")
        assert "maxTurns is 2" in str(error)
        recording = client.record.recording()
        assert (recording.truncated, recording.finish_reason, len(recording.turns)) == (True, FinishReason.LENGTH, 2)

    def test_drawn_tokens(self) -> None:
        """The last turn gets what is left, and is cut off there."""
        client = client_of(kinds=["reasoning"], sampling=Sampling(30))
        error = spent(client, branches=False)
        assert (error.code, "maxTokens is 30" in str(error)) == ("episode_budget_exceeded", True)
        recording = client.record.recording()
        assert sum(len(turn.token_ids) for turn in recording.turns) == 30
        assert recording.truncated

    def test_tokens_that_were_drawn_at_once_do_not_exceed_it_either(self) -> None:
        client = client_of(kinds=["reasoning"], sampling=Sampling(30))
        begun = [client.begin(body_of(FIRST)) for _ in range(5)]
        for call, turn in begun:
            client.complete(call, turn)
            client.record.deliver(call)
        recording = client.record.recording()
        assert 0 < sum(len(turn.token_ids) for turn in recording.turns) <= 30
        refused = [call.refusal for call, _ in begun if call.refusal is not None]
        assert {error.code for error in refused} == {"episode_budget_exceeded"}
        assert recording.undelivered == len(refused) > 0

    def test_a_full_context(self) -> None:
        client = client_of(limits=Limits(60), kinds=["text"])
        messages = then(FIRST, client.ask(FIRST).message)
        error = refusal(client, then(messages, client.ask(messages).message, "word " * 60))
        assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "messages")
        assert client.record.recording().truncated
        assert client.ask(FIRST).delivered, "a shorter one is answered"
        assert not client.record.recording().truncated

    def test_a_context_that_fills_up(self) -> None:
        client = client_of(kinds=["reasoning"])
        length = client.ask(FIRST).length
        client = client_of(kinds=["reasoning"], limits=Limits(length + 3))
        call = client.ask(FIRST)
        assert call.reply is not None
        assert (len(call.drawn), call.reply.finish_reason) == (3, FinishReason.LENGTH)
        assert client.record.recording().truncated

    def test_a_turn_that_the_client_cuts_off_truncates_nothing(self) -> None:
        client = client_of(kinds=["reasoning"])
        call = client.ask(FIRST, max_tokens=3)
        assert len(call.drawn) == 3
        assert not client.record.recording().truncated

    def test_segments(self) -> None:
        client = client_of(limits=Limits(10_000, segments=2), kinds=["text"])
        messages = then(FIRST, client.ask(FIRST).message)
        client.ask(messages)
        client.ask(then(FIRST, messages[2], "Another way."))
        error = refusal(client, then(FIRST, messages[2], "A third way."))
        assert (error.code, "maxSegments is 2" in str(error)) == ("episode_budget_exceeded", True)
        assert len(trajectory(client.record.recording().turns).segments) == 2

    @pytest.mark.parametrize("limit", range(20, 200, 15))
    def test_computed_tokens(self, limit: int) -> None:
        client = client_of(limits=Limits(10_000, computed_tokens=limit), kinds=["text"])
        error = spent(client, branches=True)
        assert (error.code, "maxComputedTokens" in str(error)) == ("episode_budget_exceeded", True)
        recording = client.record.recording()
        if recording.turns:
            assert sum(segment.size.computed for segment in trajectory(recording.turns).segments) <= limit


class TestAppend:
    def test_a_template_that_does_not_append_makes_segments(self) -> None:
        client = client_of("phi3", kinds=["call"])
        reply = client.ask(FIRST).message
        result = [*FIRST, reply, says("tool", "r", tool_call_id=reply["tool_calls"][0]["id"])]
        assert "leaves out the tool calls" in str(refusal(client, result))
        client = client_of("deepseekv3", kinds=["text"])
        call = client.ask(
            [*then(FIRST, client.ask(FIRST).message)[:-1], says("system", "Hurry."), says("user", "And?")]
        )
        assert (call.parent, call.beginning) == (None, Beginning.TEMPLATE)

    def test_it_is_an_error_where_the_environment_wants_to_append(self) -> None:
        client = client_of("deepseekv3", kinds=["text"], append=True)
        messages = then(FIRST, client.ask(FIRST).message)
        error = refusal(client, [*messages[:-1], says("system", "Hurry."), says("user", "And?")])
        assert (error.code, "`history: Append`" in str(error)) == ("history_not_appended", True)

    def test_it_is_an_error_at_the_first_such_list_of_tools(self) -> None:
        client = client_of("gemma3", append=True)
        client.ask(FIRST)
        assert refusal(client, FIRST, tools=TOOLS).code == "history_not_appended"
        assert client_of("qwen3", append=True).ask(FIRST, tools=TOOLS).delivered


def test_a_replay_has_the_same_seeds_whatever_comes_first() -> None:
    """Two agents, whose requests a replay takes in another order; each begins with two equal requests at once."""
    seeds = []
    for order in ((0, 1, 0, 1, 0, 1), (1, 1, 0, 1, 0, 0)):
        client = client_of(seed=5)
        agents = [[says("user", name)] for name in ("left", "right")]
        for agent in order:
            client.ask(agents[agent])
            agents[agent] = then(agents[agent], client.ask(agents[agent]).message)
        seeds.append({(tuple(turn.prompt_ids.tolist()), turn.seed, tuple(ids)) for turn, ids in client.engine.drawn})
    assert seeds[0] == seeds[1]
    assert len(seeds[0]) == 12


def test_ids_of_tool_calls_are_what_every_template_takes() -> None:
    replies = [client_of(kinds=["calls"]).ask(FIRST).message for _ in range(2)]
    ids = [call["id"] for call in replies[0]["tool_calls"]]
    assert replies[0] == replies[1]
    assert len(set(ids)) == 2
    assert all(len(name) == 9 and name.isalnum() for name in ids)


def test_ignored_keys_are_counted() -> None:
    client = client_of()
    client.ask(FIRST, temperature=0, seed=1)
    client.ask(FIRST, temperature=0.1, user="ann")
    assert client.record.recording().ignored == {"temperature": 2, "seed": 1, "user": 1}


def test_the_engine_is_told_what_it_has_to_know() -> None:
    client = client_of(evaluation=True, sampling=Sampling(500, temperature=0.6, stop=("END",)))
    _, turn = client.begin(body_of(FIRST, stop="A", temperature=1, max_tokens=20))
    assert turn is not None
    assert (turn.number, turn.evaluation, turn.sample) == (0, True, client.record.launch.sample)
    assert turn.sampling == Sampling(20, temperature=0.6, stop=("END", "A"))
    assert (turn.tools, turn.template_arguments) == ((), {})
    _, turn = client.begin(body_of(FIRST, tools=TOOLS, chat_template_kwargs={"enable_thinking": False}))
    assert turn is not None
    assert (list(turn.tools), turn.template_arguments) == (TOOLS, {"enable_thinking": False})


def test_text_that_is_not_unicode_is_refused() -> None:
    client = client_of(kinds=["text"])
    messages = then(FIRST, client.ask(FIRST).message, "\ud800")
    assert "isn't Unicode" in str(refusal(client, messages))
    assert "isn't Unicode" in str(refusal(client, messages[-1:]))
    tool = {"type": "function", "function": {"name": "look", "description": "\ud800"}}
    assert "isn't Unicode" in str(refusal(client, FIRST, tools=[tool]))


def test_a_call_keeps_nothing_of_the_tools_that_every_request_has() -> None:
    tools = json.dumps([{**tool, "function": {**tool["function"], "description": "x" * 20_000}} for tool in TOOLS])
    client = client_of(kinds=["text"])
    messages = then(FIRST, client.ask(FIRST, tools=json.loads(tools)).message, "?")
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(5):
            messages = then(messages, client.ask(messages, tools=json.loads(tools)).message, "?")
            client.engine.drawn.clear()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < len(tools)
