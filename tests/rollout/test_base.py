from __future__ import annotations

import threading

import numpy as np
import pytest

from longboat_runtime.rollout.base import EndedTurn, Outbox
from longboat_runtime.samples import FinishReason, GeneratedSample, SampleId, Segment
from longboat_runtime.turns import TurnReply
from tests.support.waiting import DEADLINE_SECONDS


def sample(index: int) -> GeneratedSample:
    segment = Segment.single_turn(
        np.zeros(1, dtype=np.int32), np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32), ()
    )
    return GeneratedSample(
        id=SampleId(0, 0, 0, index),
        segments=(segment,),
        finish_reason=FinishReason.STOP,
        text="",
        engine="e",
    )


def taken(outbox: Outbox) -> list[int]:
    return [made.id.index for made in outbox.take(0)]


def test_what_is_kept_back_leaves_on_release() -> None:
    outbox = Outbox()
    outbox.put(sample(0))
    outbox.hold()
    outbox.put(sample(1))
    assert taken(outbox) == [0]
    outbox.release()
    assert taken(outbox) == [1]


def test_what_is_dropped_never_leaves() -> None:
    outbox = Outbox()
    outbox.hold()
    outbox.put(sample(1))
    assert outbox.drop(RuntimeError("refused")) == [SampleId(0, 0, 0, 1)]
    outbox.put(sample(2))
    assert taken(outbox) == [2]


def test_failure_comes_after_what_was_ready() -> None:
    outbox = Outbox()
    outbox.put(sample(0))
    outbox.fail(RuntimeError("gone"))
    assert taken(outbox) == [0]
    with pytest.raises(RuntimeError, match="gone"):
        outbox.take(60)


def test_a_sample_that_finishes_soon_after_another_leaves_with_it() -> None:
    outbox, following = Outbox(), [1, 2]
    outbox.put(sample(0))

    def more() -> bool:
        if following:
            outbox.put(sample(following.pop(0)))
        return bool(following)

    assert [made.id.index for made in outbox.take(60, more)] == [0, 1, 2]


def test_nobody_waits_long_for_what_goes_on_running() -> None:
    outbox = Outbox()
    outbox.put(sample(0))
    assert [made.id.index for made in outbox.take(60, lambda: True)] == [0]


def turn() -> TurnReply:
    return TurnReply(np.zeros(0, np.int32), np.zeros(0, np.float32), (), FinishReason.STOP, "", {})


def test_turns_are_kept_back_with_samples() -> None:
    outbox = Outbox()
    first, second, third = (outbox.promise() for _ in range(3))
    outbox.put(EndedTurn(first, turn()))
    assert first.done()
    outbox.hold()
    outbox.put(EndedTurn(second, turn()))
    assert not second.done()
    outbox.release()
    assert second.done()
    outbox.hold()
    outbox.put(EndedTurn(third, turn()))
    outbox.put(sample(1))
    assert outbox.drop(RuntimeError("refused")) == [SampleId(0, 0, 0, 1)]
    assert str(third.exception()) == "refused"


def test_failure_fails_the_turns_that_are_waited_for() -> None:
    outbox = Outbox()
    over, open_, ended = (outbox.promise() for _ in range(3))
    outbox.forget(over)
    outbox.put(EndedTurn(ended, turn()))
    outbox.fail(RuntimeError("gone"))
    outbox.put(EndedTurn(open_, turn()))  # its engine's failure came first
    assert str(open_.exception()) == "gone"
    assert not over.done()
    assert ended.result().finish_reason is FinishReason.STOP


def test_a_waiting_taker_is_woken() -> None:
    outbox = Outbox()
    got: list[GeneratedSample] = []
    taker = threading.Thread(target=lambda: got.extend(outbox.take(DEADLINE_SECONDS)))
    taker.start()
    outbox.put(sample(3))
    taker.join()
    assert [made.id.index for made in got] == [3]
