"""What a sample of several turns is, and what the driver learns of it."""

import numpy as np
import pytest
from hypothesis import given

from longboat_runtime.samples import Segment, SegmentSize, TokenRange
from longboat_runtime.trajectories import Turn, trajectory
from tests.samples.trees import sample_of, trees, turn
from tests.trainer.trainer_world import make_samples


@given(trees())
def test_the_driver_learns_what_the_turns_were(turns: list[Turn]) -> None:
    sample = sample_of(turns)
    assert sample.prompt_ids.tolist() == turns[0].context.tolist()
    assert sample.token_ids.tolist() == turns[-1].token_ids.tolist(), "the last turn is the last reply"
    assert sample.logprobs.tolist() == turns[-1].logprobs.tolist()
    drawn = sum(len(one.token_ids) for one in turns)
    assert sample.response.tokens == sample.summary.tokens == sample.size.trained == drawn
    assert sample.size.computed == sum(len(segment.token_ids) for segment in sample.segments)
    versions = sorted(version for version, start, end in sample.spans for _ in range(start, end))
    assert versions == sorted(version for version, one in enumerate(turns) for _ in one.token_ids)
    ends = [0, *(span.end for span in sample.spans)]
    assert [span.start for span in sample.spans] == ends[:-1]


@pytest.mark.parametrize("continues", [1, 2, -1])
def test_a_turn_continues_an_earlier_one_only(continues: int) -> None:
    random = np.random.default_rng(0)
    with pytest.raises(ValueError, match=f"turn 1 continues turn {continues}"):
        trajectory([turn(random, None, 0), turn(random, continues, 1)])


def test_there_is_no_sample_without_a_turn() -> None:
    with pytest.raises(ValueError, match="without a turn"):
        trajectory([])


@pytest.mark.parametrize(
    ("trained", "logprobs", "message"),
    [
        ((), 0, "not turns"),
        ((TokenRange(0, 2),), 2, "not turns"),
        ((TokenRange(1, 6),), 5, "not turns"),
        ((TokenRange(3, 4), TokenRange(1, 2)), 2, "not turns"),
        ((TokenRange(1, 3), TokenRange(2, 4)), 4, "not turns"),
        ((TokenRange(1, 3),), 5, "5 log-probs for 2 trained tokens"),
    ],
)
def test_a_segment_that_does_not_fit_its_tokens_is_refused(
    trained: tuple[TokenRange, ...], logprobs: int, message: str
) -> None:
    """Log-probs at context positions are a mistake of whoever made the segment: they would shift those of trained tokens."""
    with pytest.raises(ValueError, match=message):
        Segment(np.arange(5, dtype=np.int32), trained, np.zeros(logprobs, np.float32), ())


def test_a_single_turn_tells_the_driver_what_it_always_did() -> None:
    [sample] = make_samples(1)
    prompt, tokens = len(sample.prompt_ids), len(sample.token_ids)
    assert sample.size.segments == (SegmentSize(prompt + tokens, tokens),)
    summary = sample.summary
    assert (summary.prompt_tokens, summary.tokens, summary.spans, summary.segments) == (
        prompt,
        tokens,
        sample.spans,
        (),
    )
