"""Samples like others."""

from __future__ import annotations

from dataclasses import replace

from longboat_runtime.samples import FloatArray, GeneratedSample, IntArray, Segment, VersionSpan


def with_response(
    sample: GeneratedSample,
    token_ids: IntArray | None = None,
    logprobs: FloatArray | None = None,
    spans: tuple[VersionSpan, ...] | None = None,
) -> GeneratedSample:
    """Returns a sample of one turn that differs from `sample` in what is given of its response."""
    segment = Segment.single_turn(
        sample.prompt_ids,
        sample.token_ids if token_ids is None else token_ids,
        sample.logprobs if logprobs is None else logprobs,
        sample.spans if spans is None else spans,
    )
    return replace(sample, segments=(segment,))
