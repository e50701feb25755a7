"""Samples of random tokens, for benchmarks that generate nothing."""

from __future__ import annotations

import numpy as np

from longboat_runtime.samples import FinishReason, GeneratedSample, IntArray, SampleId, Segment, VersionSpan


def random_sample(
    random: np.random.Generator,
    id_: SampleId,
    prompt_ids: IntArray,
    length: int,
    tokens: tuple[int, int],
    logprob: float,
    finish_reason: FinishReason = FinishReason.STOP,
) -> GeneratedSample:
    """Makes a sample whose response has `length` tokens, drawn from range(*tokens), with log-probs about `logprob`."""
    segment = Segment.single_turn(
        prompt_ids,
        random.integers(*tokens, length).astype(np.int32),
        random.normal(logprob, 0.2, length).astype(np.float32),
        (VersionSpan(0, 0, length),),
    )
    return GeneratedSample(
        id=id_,
        segments=(segment,),
        finish_reason=finish_reason,
        text="",
        engine="",
    )
