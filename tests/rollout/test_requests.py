"""Responses as vLLM gives them: their text and special tokens, and where one that moved repeats itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.rollout.requests import generated_sample, repetition_end
from longboat_runtime.samples import Repetition, SampleId, SampleRequest, Sampling
from longboat_runtime.special_tokens import with_special_tokens


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


@pytest.mark.parametrize(
    ("stop_token_ids", "include", "text", "special"),
    [
        ((), False, "hi", ((0, "<think>"), (2, "<end>"))),
        ((1,), False, "hi", ((0, "<think>"), (2, "<end>"))),
        ((1,), True, "hi<end>", ((0, "<think>"),)),
    ],
)
def test_special_tokens_are_beside_the_text_unless_the_stop_is_kept(
    stop_token_ids: tuple[int, ...], include: bool, text: str, special: tuple[tuple[int, str], ...]
) -> None:
    names = {0: "<think>", 1: "<end>", 2: "h", 3: "i"}
    ids = [0, 2, 3, 1]
    logprobs = SimpleNamespace(start_indices=range(4), logprobs=[-1.0] * 4)
    completion = SimpleNamespace(
        token_ids=ids, logprobs=logprobs, weight_versions=None, finish_reason="stop", text=None, stop_reason=None
    )
    sampling = Sampling(16, stop_token_ids=stop_token_ids, include_stop=include)
    request = SampleRequest(SampleId(0, 0, 0, 0), (9,), 0, sampling)
    tokenizer = SimpleNamespace(
        decode=lambda ids, skip_special_tokens: "".join(names[i] for i in ids if i > 1 or not skip_special_tokens)
    )
    output: Any = SimpleNamespace(outputs=[completion])
    sample = generated_sample(request, None, output, "engine", tokenizer, {0: "<think>", 1: "<end>"})
    assert (sample.text, sample.special) == (text, special)
    assert with_special_tokens(sample.text, sample.special) == "<think>hi<end>"
