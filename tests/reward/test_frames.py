import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_graders.frames import FrameBuffer, FrameError, encode

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(
    messages=st.lists(st.tuples(st.dictionaries(st.text(), json_values), st.binary(max_size=80)), max_size=3),
    cuts=st.lists(st.integers(1, 50), min_size=1),
)
def test_messages_come_through_however_the_stream_is_cut(
    messages: list[tuple[dict[str, object], bytes]], cuts: list[int]
) -> None:
    stream = b"".join(encode(message, body) for message, body in messages)
    buffer, received, position, turn = FrameBuffer(), [], 0, 0
    while position < len(stream):
        step = cuts[turn % len(cuts)]
        received += buffer.feed(stream[position : position + step])
        position, turn = position + step, turn + 1
    assert received == messages
    assert buffer.empty


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\3" + bytes(4) + b"123",
        b"\0\0\0\1\0\0\0\0{",
        b"\x7f\xff\xff\xff" * 2,
        b"\0\0\0\2\x7f\xff\xff\xff",
        bytes(8),
    ],
)
def test_what_is_no_message_is_an_error(data: bytes) -> None:
    with pytest.raises(FrameError):
        FrameBuffer().feed(data)


@pytest.mark.parametrize("message", [{"a": object()}, {"a": {1, 2}}])
def test_what_is_no_json_is_not_sent(message: dict[str, object]) -> None:
    with pytest.raises(FrameError, match="isn't JSON"):
        encode(message)
