"""Records as TensorBoard events, without torch."""

from __future__ import annotations

import math
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from longboat_runtime.metrics.record import Record


class TensorBoard:
    """One event file in `directory`; a scalar for each finite metric."""

    def __init__(self, directory: Path) -> None:
        self._writer = EventFileWriter(str(directory))

    def write(self, record: Record) -> None:
        values = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in sorted(record.metrics.items())
            if math.isfinite(value)
        ]
        self._writer.add_event(Event(wall_time=record.time, step=record.step, summary=Summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
