from __future__ import annotations

import threading

import numpy as np
import pytest

from longboat_runtime.rollout.base import Outbox
from longboat_runtime.samples import FinishReason, GeneratedSample, SampleId, Segment
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
    assert outbox.drop() == [SampleId(0, 0, 0, 1)]
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


def test_a_waiting_taker_is_woken() -> None:
    outbox = Outbox()
    got: list[GeneratedSample] = []
    taker = threading.Thread(target=lambda: got.extend(outbox.take(DEADLINE_SECONDS)))
    taker.start()
    outbox.put(sample(3))
    taker.join()
    assert [made.id.index for made in got] == [3]
