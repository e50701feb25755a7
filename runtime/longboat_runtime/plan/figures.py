"""What one rank of a trainer holds and moves, in bytes. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Phase:
    """Memory of a device in one phase: held `before`, `peak`, and held `after`."""

    before: int
    peak: int
    after: int

    def extended(self, more: Phase, factor: float) -> Phase:
        """See `Figures.extended`."""
        return Phase(*(_line(getattr(self, name), getattr(more, name), factor) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Figures:
    """What the trace of one of `ranks` ranks counted, in bytes.

    On its device `weights`, those of the KL `reference`, optimizer `states`, and memory by phase: `load`, `accumulate` (bins, forward
    and backward), `update`, `publish` and `snapshot`. In host memory a `snapshot` for checkpoints, and what is `pinned` for
    activations. All ranks together publish `published`, whose `largest` tensor has so many bytes; `vectors` are on all ranks of an
    engine, `key_values` make keys and values. In one bin this rank receives `gathered` and sends `scattered`, and its shard of the
    gradient, `reduced`, is summed over the copies of the model. So many `operators` were
    traced, and no tensor with memory was larger than `real`.
    """

    ranks: int
    parameters: int
    weights: int
    reference: int
    states: int
    phases: dict[str, Phase]
    snapshot: int
    pinned: int
    published: int
    largest: int
    vectors: int
    key_values: int
    gathered: float
    scattered: float
    reduced: float
    operators: int
    real: int

    @property
    def peak(self) -> int:
        """Returns the most that a device holds at one time."""
        return max(phase.peak for phase in self.phases.values())

    def to_json(self) -> str:
        """Returns the figures as a text for `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Figures:
        """Reads figures. Raises ValueError, TypeError or KeyError if the text holds none."""
        content = json.loads(text)
        phases = {name: Phase(**phase) for name, phase in content.pop("phases").items()}
        return cls(phases=phases, **content)

    def extended(self, more: Figures, factor: float) -> Figures:
        """Returns the figures of a model with `factor` times as many further layers as `more` has. Layers that repeat add the same."""
        values: dict[str, Any] = {
            name: _line(getattr(self, name), getattr(more, name), factor)
            for name in (
                "parameters",
                "weights",
                "reference",
                "states",
                "snapshot",
                "pinned",
                "published",
                "vectors",
                "key_values",
                "gathered",
                "scattered",
                "reduced",
            )
        }
        return Figures(
            ranks=self.ranks,
            phases={name: phase.extended(more.phases[name], factor) for name, phase in self.phases.items()},
            largest=max(self.largest, more.largest),
            operators=self.operators + more.operators,
            real=max(self.real, more.real),
            **values,
        )


def _line(fewer: float, more: float, factor: float) -> int:
    return round(fewer + (more - fewer) * factor)
