"""The metrics of one step as a record, and the JSON-lines files that keep all records of a job."""

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
        """Returns one line of JSON, without its newline; a metric that is not a finite number is null."""
        metrics = {name: value if math.isfinite(value) else None for name, value in sorted(self.metrics.items())}
        return json.dumps({"training/global_step": self.step, "time": self.time, **metrics}, allow_nan=False)


class Sink(Protocol):
    """Takes the records of a job."""

    def write(self, record: Record) -> None: ...

    def close(self) -> None: ...


def read_records(root: Path) -> list[Record]:
    """Reads a job's records, one for each step, in order, given its checkpoint directory.

    What an earlier incarnation recorded beyond the first step that a later one recorded doesn't count. Where both have a step, the
    metrics of the later one add to or replace those of the earlier one. Torn last lines are left out.
    """
    steps: dict[int, Record] = {}
    files = sorted(root.glob("incarnations/*/metrics.jsonl"), key=lambda path: int(path.parent.name))
    for file in files:
        records = [read_record(line) for line in file.read_text().split("\n")[:-1]]
        first = min((record.step for record in records), default=math.inf)
        steps = {step: record for step, record in steps.items() if step <= first}
        for record in records:
            earlier = steps[record.step].metrics if record.step in steps else {}
            steps[record.step] = Record(record.step, record.time, {**earlier, **record.metrics})
    return [steps[step] for step in sorted(steps)]


def read_record(line: str) -> Record:
    """Reads what `Record.to_line` wrote, but for numbers that are not finite: they become NaN."""
    values = json.loads(line)
    step, time = values.pop("training/global_step"), values.pop("time")
    return Record(step, time, {name: math.nan if value is None else value for name, value in values.items()})


class JsonLines:
    """A sink that appends a line for each record and hands it to the kernel at once."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, record: Record) -> None:
        self._file.write(record.to_line() + "\n")

    def close(self) -> None:
        self._file.close()
