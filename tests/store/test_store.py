from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from longboat_runtime.samples import Episode, EpisodeEnd, FinishReason, GeneratedSample, SampleId, Segment, VersionSpan
from longboat_runtime.store.actor import HeldSamples


def sample(index: int, tokens: int = 3) -> GeneratedSample:
    segment = Segment.single_turn(
        np.arange(4, dtype=np.int32),
        np.arange(tokens, dtype=np.int32),
        np.zeros(tokens, dtype=np.float32),
        (VersionSpan(1, 0, tokens),),
    )
    return GeneratedSample(
        id=SampleId(0, 5, 0, index),
        segments=(segment,),
        finish_reason=FinishReason.LENGTH,
        text="ä" * tokens,
        engine="e",
    )


def test_putting_again_and_deleting_twice_change_nothing() -> None:
    held = HeldSamples()
    held.put([sample(0), sample(1)])
    held.put([sample(1, tokens=9)])
    assert [len(got.token_ids) for got in held.get([sample(1).id, sample(0).id])] == [3, 3]
    held.delete([sample(0).id, SampleId(9, 9, 9, 9)])
    held.delete([sample(0).id])
    assert held.ids() == [sample(1).id]


def test_what_is_unfinished_is_replaced() -> None:
    held = HeldSamples()
    held.put([replace(sample(0), finish_reason=FinishReason.ABORT)])
    held.put([sample(0, tokens=5)])
    held.put([replace(sample(0), finish_reason=FinishReason.ABORT)])
    assert [len(got.token_ids) for got in held.get([sample(0).id])] == [5]


def test_an_engine_that_is_known_to_be_dead_puts_nothing() -> None:
    """What it sent just before may arrive when its sample has been deleted, or is being made again."""
    held = HeldSamples()
    held.put([replace(sample(0), finish_reason=FinishReason.ABORT)])
    held.refused.add("e")
    held.put([sample(0, tokens=5), sample(1)])
    assert [len(got.token_ids) for got in held.get([sample(0).id])] == [3]
    held.put([replace(sample(1), engine="e.1")])
    assert held.ids() == [sample(0).id, sample(1).id]


def test_episodes_go_to_graders_and_not_to_trainers() -> None:
    held, played = HeldSamples(), Episode("game", EpisodeEnd.FINISHED, 1.0, environment_seconds=2.0)
    held.put([replace(sample(0), episode=played)])
    [trained] = held.get([sample(0).id])
    assert trained.episode is None
    assert held.responses([sample(0).id], token_ids=False)[sample(0).id].episode == played


def test_graders_get_what_is_held_without_tokens() -> None:
    held = HeldSamples()
    held.put([sample(0), sample(1, tokens=9)])
    responses = held.responses([sample(0).id, sample(1).id, sample(2).id], token_ids=False)
    assert responses == {sample(i).id: sample(i, tokens=count).response for i, count in ((0, 3), (1, 9))}
    assert responses[sample(1).id].tokens == 9
    assert responses[sample(1).id].token_ids is None


def test_those_who_ask_get_token_ids() -> None:
    held = HeldSamples()
    held.put([sample(1, tokens=9)])
    (response,) = held.responses([sample(1).id], token_ids=True).values()
    assert response.token_ids is not None
    assert response.token_ids.tolist() == sample(1, tokens=9).token_ids.tolist()


def test_missing_samples_are_named() -> None:
    held = HeldSamples()
    held.put([sample(0)])
    with pytest.raises(KeyError) as caught:
        held.get([sample(0).id, sample(1).id, sample(2).id])
    assert caught.value.args == (sample(1).id, sample(2).id)
