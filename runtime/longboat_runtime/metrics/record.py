"""The metrics of one step."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Record:
    """`step` counts committed optimizer steps (0: before the first); `time` is Unix time in seconds."""

    step: int
    time: float
    metrics: Mapping[str, float] = field(default_factory=dict)

    def to_line(self) -> str:
        """One line of JSON; what is not a finite number is null."""
        metrics = {name: value if math.isfinite(value) else None for name, value in sorted(self.metrics.items())}
        return json.dumps({"training/global_step": self.step, "time": self.time, **metrics}, allow_nan=False)


class Sink(Protocol):
    """Somewhere records go."""

    def write(self, record: Record) -> None: ...

    def close(self) -> None: ...


def read_records(root: Path) -> list[Record]:
    """The records of a job's surviving incarnations, by step, given its checkpoint directory.

    What an earlier incarnation recorded beyond the step that a later one began with is dead. Torn last lines are left out.
    """
    steps: dict[int, Record] = {}
    files = sorted(root.glob("incarnations/*/metrics.jsonl"), key=lambda path: int(path.parent.name))
    for file in files:
        records = [_read(line) for line in file.read_text().split("\n")[:-1]]
        first = min((record.step for record in records), default=math.inf)
        steps = {step: record for step, record in steps.items() if step <= first}
        for record in records:
            known = steps[record.step].metrics if record.step in steps else {}
            steps[record.step] = Record(record.step, record.time, {**known, **record.metrics})
    return [steps[step] for step in sorted(steps)]


def _read(line: str) -> Record:
    values = json.loads(line)
    step, time = values.pop("training/global_step"), values.pop("time")
    return Record(step, time, {name: math.nan if value is None else value for name, value in values.items()})
