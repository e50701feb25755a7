"""Messages mean the same in whatever file and form they come."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.dataset import FileFormat, FilesSource
from longboat_runtime.data.messages import arguments, holds_messages, normalised, tools, without_nulls
from longboat_runtime.data.tables import open_files

words = st.text(min_size=1, max_size=8)
names = st.text(st.sampled_from("abcde"), min_size=1, max_size=2)
parts = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": words}), min_size=1, max_size=3)
calls = st.lists(
    st.fixed_dictionaries(
        {
            "function": st.fixed_dictionaries(
                {"name": names}, optional={"arguments": st.dictionaries(names, words, min_size=1)}
            )
        },
        optional={"id": words},
    ),
    min_size=1,
    max_size=2,
)


def chats(content: st.SearchStrategy[Any]) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Messages whose last is the user's; others may be calls and their results."""
    said = st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant"]), "content": content}, optional={"name": words}
    )
    called = st.fixed_dictionaries({"role": st.just("assistant"), "tool_calls": calls})
    last = st.fixed_dictionaries({"role": st.just("user"), "content": content})
    return st.tuples(st.lists(said | called, max_size=4), last).map(lambda chat: [*chat[0], chat[1]])


@given(rows=st.lists(chats(words), min_size=1, max_size=4) | st.lists(chats(parts), min_size=1, max_size=4))
def test_rows_mean_the_same_in_parquet_as_in_json_lines(
    rows: list[list[dict[str, Any]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    records = [{"prompt": row} for row in rows]
    (folder / "rows.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    pq.write_table(pa.Table.from_pylist(records), folder / "rows.parquet")
    lines = open_files(FilesSource(paths=[str(folder / "rows.jsonl")]), "spec")
    table = open_files(FilesSource(paths=[str(folder / "rows.parquet")], format=FileFormat.PARQUET), "spec")
    for row, messages in enumerate(rows):
        own = normalised(lines.record(row)["prompt"])
        assert normalised(table.record(row)["prompt"]) == own
        for message, original in zip(own, messages, strict=True):
            content = original.get("content")
            joined = "".join(part["text"] for part in content) if isinstance(content, list) else content
            assert message == ({**original, "content": joined} if content is not None else original)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(json_values)
def test_only_keys_that_are_null_are_dropped(value: Any) -> None:
    def expected(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: expected(item) for key, item in value.items() if item is not None}
        return [expected(item) for item in value] if isinstance(value, list) else value

    assert without_nulls(value) == expected(value)


@given(json_values)
def test_what_is_no_chat_is_refused_with_a_sentence(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^(is|has|ends) "):
        normalised(value)


USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "is neither text nor a list of messages"),
        ([{"role": "user", "content": [{"type": "image", "image": "x.png"}]}], r"part 'image' at \[0\]\.content\[0\]"),
        ([USER, {"role": "assistant", "content": [{"type": "input_audio"}]}], r"part 'input_audio' at \[1\]"),
        ([{"role": "user", "content": ["hi"]}], r"part str at \[0\]\.content\[0\]"),
        ([{"role": "user", "content": {"text": "hi"}}], r"dict at \[0\]\.content: write text"),
        ([{"role": "user", "content": None}], r"no `content` at \[0\]"),
        ([{"content": "hi"}], r"\[0\] that isn't a message"),
        ([USER, {"role": "system", "content": "be brief"}], "ends in a 'system' message, which"),
        ([USER, {"role": "assistant", "content": ""}], "ends in an empty assistant message"),
    ],
)
def test_forms_that_are_not_taken_are_named(messages: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        normalised(messages)


def test_text_that_holds_messages_is_recognised(tmp_path: Path) -> None:
    assert holds_messages(json.dumps([USER]))
    assert holds_messages("\n" + json.dumps([USER, USER], indent=1))
    for text in ("[1, 2]", "[]", "[role]", json.dumps(USER), "hi", "[" * 100_000):
        assert not holds_messages(text)


def test_tools_and_arguments_may_be_json_text() -> None:
    schema = {"type": "function", "function": {"name": "f", "description": None, "parameters": {}}}
    plain = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert tools([schema]) == tools(json.dumps([schema])) == tools([json.dumps(schema)]) == plain
    assert tools([]) is None
    assert arguments({"a": False, "b": None}) == arguments('{"a": false}') == {"a": False}
    for wrong in ("f", {"a": 1}, [1], ["f"], [None]):
        with pytest.raises(ValueError, match=r"^(is|has) "):
            tools(wrong)
    with pytest.raises(ValueError, match="sets messages, tokenize, which"):
        arguments({"tokenize": True, "messages": []})
    with pytest.raises(ValueError, match="is a list"):
        arguments([1])
