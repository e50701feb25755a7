"""The lengths in a block's own log: its time is simulated on them if they depend on what was learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.rounds.block import ended, stopped
from longboat_runtime.samples import SampleId
from longboat_runtime.simulate.chance import uniform
from longboat_runtime.simulate.lengths import LengthDistribution


@dataclass(frozen=True, slots=True)
class Recorded:
    """A response that ended has its tokens; one that was stopped those of a longer one, drawn at random; others follow `other`.

    If none is longer than a stopped one, that has one token more.
    """

    ended: Mapping[SampleId, int] = field(repr=False)
    stopped: Mapping[SampleId, int] = field(repr=False)
    all: Sequence[int] = field(repr=False)
    other: LengthDistribution

    @classmethod
    def from_block(cls, block: dict[str, Any], other: LengthDistribution) -> Recorded:
        lengths = ended(block)
        return cls(lengths, stopped(block), sorted(lengths.values()), other)

    def __call__(self, sample: SampleId) -> int:
        if sample in self.ended:
            return max(1, self.ended[sample])
        if sample not in self.stopped:
            return self.other(sample)
        tokens = self.stopped[sample]
        longer = [length for length in self.all if length > tokens] or [tokens + 1]
        return longer[int(uniform("recorded", *sample) * len(longer))]
