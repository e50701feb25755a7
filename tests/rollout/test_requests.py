"""Where a response that moved repeats itself is where vLLM would have found that, had it seen the whole."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.rollout.requests import repetition_end
from longboat_runtime.samples import Repetition


def first_end(token_ids: list[int], begun: int, loop: Repetition) -> int | None:
    """By vLLM's own function, token after token, as far as it doesn't see the pattern without the tokens of before."""
    from vllm.sampling_params import RepetitionDetectionParams
    from vllm.v1.core.sched.utils import check_sequence_repetition

    rule = RepetitionDetectionParams(loop.pattern_tokens, 1, loop.count)
    ends = range(begun + 1, min(len(token_ids), begun + loop.pattern_tokens * loop.count) + 1)
    return next((end for end in ends if check_sequence_repetition(token_ids[:end], rule)), None)


@given(
    st.lists(st.integers(0, 2), max_size=8),
    st.lists(st.integers(0, 1), min_size=1, max_size=4),
    st.integers(0, 8),
    st.lists(st.integers(0, 2), max_size=8),
    st.integers(0, 40),
    st.builds(Repetition, st.integers(1, 6), st.integers(2, 5)),
)
def test_a_loop_across_a_move_ends_where_vllm_would_end_it(
    before: list[int], pattern: list[int], copies: int, behind: list[int], begun: int, loop: Repetition
) -> None:
    token_ids = [*before, *pattern * copies, *behind]
    begun = min(begun, len(token_ids))
    assert repetition_end(np.array(token_ids, np.int32), begun, loop) == first_end(token_ids, begun, loop)


def test_no_rule_ends_nothing() -> None:
    assert repetition_end(np.zeros(100, np.int32), 10, None) is None
