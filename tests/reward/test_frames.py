import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.reward.graders.frames import FrameBuffer, FrameError, encode

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(
    messages=st.lists(st.dictionaries(st.text(), json_values), max_size=5),
    cuts=st.lists(st.integers(1, 50), min_size=1),
)
def test_messages_come_through_however_the_stream_is_cut(messages: list[dict[str, object]], cuts: list[int]) -> None:
    stream = b"".join(encode(message) for message in messages)
    buffer, received, position, turn = FrameBuffer(), [], 0, 0
    while position < len(stream):
        step = cuts[turn % len(cuts)]
        received += buffer.feed(stream[position : position + step])
        position, turn = position + step, turn + 1
    assert received == messages


@pytest.mark.parametrize(
    "data", [b"\x00\x00\x00\x03123", b"\x00\x00\x00\x01{", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x00"]
)
def test_what_is_no_message_is_an_error(data: bytes) -> None:
    with pytest.raises(FrameError):
        FrameBuffer().feed(data)
