"""What one rank of a trainer holds and moves, in bytes. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Phase:
    """Memory of a device in one phase, in bytes: before it, at its peak and after it."""

    before: int
    peak: int
    after: int

    def extended(self, more: Phase, factor: float) -> Phase:
        """See `Figures.extended`."""
        return Phase(*(_line(getattr(self, name), getattr(more, name), factor) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Figures:
    """What one of `ranks` ranks holds and moves, in bytes, as a trace has counted it.

    On its device: `weights`, those of the KL `reference`, optimizer `states`, and memory by phase. Phases are `load`, `accumulate` (bins,
    forward and backward), `update`, `publish` and `snapshot`. In host memory: the `snapshot` for checkpoints, and `pinned` activations.
    All ranks together publish `published`; the largest tensor has `largest`. `vectors` are on every rank of an engine, `key_values` are
    the weights of keys and values. In one bin this rank receives `gathered` and sends `scattered`; `reduced`, its shard of
    the gradient, is summed over copies of the model. The trace had `operators` operators, and no real tensor was larger than `real`.
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
        """Returns the highest peak of all phases."""
        return max(phase.peak for phase in self.phases.values())

    def to_json(self) -> str:
        """Writes the figures as JSON for `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Figures:
        """Reads what `to_json` has written. Raises ValueError, TypeError or KeyError for any other text."""
        content = json.loads(text)
        phases = {name: Phase(**phase) for name, phase in content.pop("phases").items()}
        return cls(phases=phases, **content)

    def extended(self, more: Figures, factor: float) -> Figures:
        """Extends the figures by `factor` times what `more`, the same model with further layers, adds. Layers that repeat add the same."""
        apart = ("ranks", "phases", "largest", "operators", "real")
        names = [field.name for field in fields(self) if field.name not in apart]
        values: dict[str, Any] = {name: _line(getattr(self, name), getattr(more, name), factor) for name in names}
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
