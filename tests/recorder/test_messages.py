"""Which messages are equal, and which requests have none that can be read."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.recorder.messages import SentMessage, conversation, digests, first_digest
from longboat_runtime.recorder.refusals import Refused
from tests.recorder.world import TOOLS, says

USER = says("user", "Go.")


def call(name: str = "look", arguments: Any = '{"x": 1, "y": 2}', **more: Any) -> dict[str, Any]:
    return {"id": "a", "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    first, second = ([sent.compared for sent in conversation([message, USER])] for message in (one, other))
    return first == second


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (says("assistant", None), {"role": "assistant"}),
        (says("assistant", ""), says("assistant", [])),
        (says("assistant", "a b"), says("assistant", [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}])),
        (says("user", "a"), says("user", "\n a \t")),
        (says("assistant", "", tool_calls=[call()]), says("assistant", None, tool_calls=[call(arguments='{"y":2,"x":1}', id="b")])),
        (says("assistant", "", tool_calls=[call(arguments="")]), says("assistant", "", tool_calls=[call(arguments="{}")])),
        (says("assistant", "", tool_calls=[call(arguments={"x": 1})]), says("assistant", "", tool_calls=[call(arguments='{"x":1}')])),
        (says("assistant", "", tool_calls=[call(arguments='{"x": [1.0, 2e3]}')]), says("assistant", "", tool_calls=[call(arguments='{"x":[1,2000]}')])),
        (says("tool", "r", tool_call_id="a"), says("tool", "r", tool_call_id="b")),
        (says("assistant", "a", reasoning="hm"), says("assistant", "a")),
        (says("assistant", "a", tool_calls=[], refusal=None, annotations=[], name=""), says("assistant", "a")),
        (says("assistant", "a", provider={"refusal": None}), says("assistant", "a")),
        (says("developer", "a"), says("system", "a")),
    ],
)  # fmt: skip
def test_equal_messages(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert equal(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (says("user", "a"), says("system", "a")),
        (says("user", "a"), says("user", "b")),
        (says("user", "a b"), says("user", "a  b")),
        (says("user", "a", name="Ann"), says("user", "a")),
        (says("assistant", "", tool_calls=[call()]), says("assistant", "", tool_calls=[call(name="move")])),
        (says("assistant", "", tool_calls=[call()]), says("assistant", "", tool_calls=[call(arguments='{"x": 1, "y": "2"}')])),
        (says("assistant", "", tool_calls=[call()]), says("assistant", "", tool_calls=[call(), call()])),
        (says("assistant", "", tool_calls=[call(arguments="x")]), says("assistant", "", tool_calls=[call(arguments="y")])),
    ],
)  # fmt: skip
def test_messages_that_differ(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert not equal(one, other)


contents = st.text(alphabet="ab \n\ud800é", max_size=6)
roles = st.sampled_from(["system", "user", "assistant", "tool"])
lists = st.lists(st.builds(says, roles, contents), min_size=1, max_size=5)


@given(lists, lists)
def test_digests_are_those_of_the_messages_so_far(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    normal = [[(message["role"], message["content"].strip()) for message in messages] for messages in (one, other)]
    first, second = (
        digests(b"", [sent.compared for sent in conversation([*messages, USER])]) for messages in (one, other)
    )
    for number in range(min(len(one), len(other))):
        same = normal[0][: number + 1] == normal[1][: number + 1]
        assert (first[number] == second[number]) == same


def test_messages_that_were_read_before_are_the_same_objects_and_others_are_read() -> None:
    read = conversation([says("user", "1"), USER])
    earlier = {sent.as_sent: sent for sent in read}
    again = conversation(json.loads(json.dumps([says("user", "1"), says("user", "2"), USER])), earlier)
    assert [sent.message["content"] for sent in again] == ["1", "2", "Go."]
    assert (again[0], again[2]) == (read[0], read[1])
    assert again[0].message is read[0].message


@given(st.permutations([1, True, 1.0, 0, False, "1", None]))
def test_values_that_python_takes_for_equal_are_read_as_they_are(values: list[Any]) -> None:
    earlier: dict[bytes, SentMessage] = {}
    for value in values:
        message = says("assistant", None, tool_calls=[call(arguments={"x": [value]})])
        [sent, _] = conversation([message, USER], earlier)
        [argument] = sent.message["tool_calls"][0]["function"]["arguments"]["x"]
        assert (argument, type(argument)) == (value, type(value))
        earlier[sent.as_sent] = sent


def test_tools_and_template_arguments_count() -> None:
    assert (
        len(
            {first_digest(None, {}), first_digest(TOOLS, {}), first_digest(TOOLS[:1], {}), first_digest(None, {"a": 1})}
        )
        == 4
    )
    assert first_digest([], {}) == first_digest(None, {})


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("Hello", "messages"),
        (["Hello"], "messages[0]"),
        ([says("function", "x")], "messages[0]"),
        ([{"role": ["user"], "content": "x"}], "messages[0]"),
        ([{"content": "x"}], "messages[0]"),
        ([USER, says("user", 7)], "messages[1].content"),
        ([says("user", [{"type": "image_url", "image_url": {}}])], "messages[0].content[0]"),
        ([says("user", ["x"])], "messages[0].content[0]"),
        ([USER, says("assistant", "x")], "messages[1]"),
        ([says("assistant", "", tool_calls="look"), USER], "messages[0].tool_calls"),
        ([says("assistant", "", tool_calls=[{"name": "look"}]), USER], "messages[0].tool_calls[0]"),
    ],
)
def test_what_cannot_be_read_is_named(messages: Any, param: str) -> None:
    with pytest.raises(Refused) as refused:
        conversation(messages)
    assert refused.value.param == param
    assert f"`{param}`" in str(refused.value)
