"""Samples of several turns: trees, since a turn may be continued more than once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from longboat_runtime.samples import FinishReason, GeneratedSample, SampleId, VersionSpan
from longboat_runtime.trajectories import Turn, trajectory

VOCABULARY = 264


def turn(random: np.random.Generator, continues: int | None, number: int) -> Turn:
    drawn = int(random.integers(1, 7))
    return Turn(
        random.integers(4, VOCABULARY, int(random.integers(1, 9))).astype(np.int32),
        random.integers(4, VOCABULARY, drawn).astype(np.int32),
        random.normal(-5.5, 0.2, drawn).astype(np.float32),
        (VersionSpan(number, 0, drawn),),
        continues,
    )


def sample_of(turns: Sequence[Turn], row: int = 0, index: int = 0) -> GeneratedSample:
    segments, reply, _ = trajectory(turns)
    return GeneratedSample(SampleId(0, row, 0, index), segments, FinishReason.STOP, "", "engine", reply=reply)


@st.composite
def trees(draw: st.DrawFn) -> list[Turn]:
    """Turns that continue any earlier one, or none."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.integers(1, 8))
    parents = [draw(st.none() | st.integers(0, number - 1)) if number else None for number in range(count)]
    return [turn(random, parent, number) for number, parent in enumerate(parents)]


def context(turns: Sequence[Turn], number: int) -> list[int]:
    """All tokens behind which a turn was drawn."""
    own, before = turns[number].context.tolist(), turns[number].continues
    return own if before is None else [*context(turns, before), *turns[before].token_ids.tolist(), *own]
