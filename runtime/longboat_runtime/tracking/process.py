"""The process of one tracker: logs what the job's files have and the tracker hasn't, until the job ends.

It reads a TrackedJob from the first line of standard input and, when the job ends, how it ended from the second. `null`, or the end of
the input alone, means that the job resumes later. To standard output it writes a line of JSON for everything that the driver should
know: `{"place"}`, `{"logged"}`, `{}` as a sign of life. `{"field", "message"}` alone is the problem that it ends with, beside
`logged` one that only tables have.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from longboat_graders import prctl
from longboat_runtime.tracking.feed import Feed, Superseded
from longboat_runtime.tracking.mlflow import Mlflow
from longboat_runtime.tracking.tracker import TrackedJob, Tracker, TrackingProblem
from longboat_runtime.tracking.weights_and_biases import WeightsAndBiases

# Trackers by their fields of `spec.tracking`.
TRACKERS: Mapping[str, Callable[[TrackedJob], Tracker]] = {"weightsAndBiases": WeightsAndBiases, "mlflow": Mlflow}

_LOWEST = 19
# How often the job's files are read, and how often the process says that it lives.
POLL_SECONDS = 2.0
ALIVE_SECONDS = 30.0


class Ending:
    """Tells how the job ended, once it has: read from the rest of `source` by a thread of its own."""

    def __init__(self, source: TextIO) -> None:
        self.how: str | None = None
        self._ended, self._source = threading.Event(), source
        threading.Thread(target=self._read, daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Whether the job has ended, waiting `seconds` for it at most."""
        return self._ended.wait(seconds)

    def _read(self) -> None:
        self.how = json.loads(line) if (line := self._source.readline()) else None
        self._ended.set()


def follow(tracker: Tracker, job: TrackedJob, ending: Ending, say: Callable[[Mapping[str, Any]], None]) -> None:
    """Logs records until the job has ended and everything is logged. Raises what `Feed.entries` or the tracker raises."""
    feed = Feed(Path(job.root), job.incarnation, tracker.position, job.spec)
    last_word, ended, caught_up = time.monotonic(), False, False
    while True:
        for entry in feed.entries(ended=ended):
            tracker.log(entry)
            say({"logged": entry.record.step, **(tracker.lacking.to_json() if tracker.lacking else {})})
            last_word = time.monotonic()
        if feed.caught_up and not caught_up:
            tracker.caught_up()
            caught_up = True
        if ended:
            break
        if time.monotonic() - last_word > ALIVE_SECONDS:
            say({})
            last_word = time.monotonic()
        # Everything is read once more after the end.
        ended = ending.wait(POLL_SECONDS)
    tracker.finish(ending.how)


def main(kind: str) -> int:
    """Runs the tracker of this field of `spec.tracking`."""
    prctl.die_with_parent()
    prctl.hide_memory()
    os.nice(_LOWEST)
    # Clients print what they like: that goes to standard error.
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    job = TrackedJob.from_json(json.loads(sys.stdin.readline()))

    def say(what: Mapping[str, Any]) -> None:
        print(json.dumps(what), file=output)

    try:
        tracker = TRACKERS[kind](job)
        say({"place": tracker.place})
        follow(tracker, job, Ending(sys.stdin), say)
    except Superseded:
        return 0
    except TrackingProblem as problem:
        say(problem.to_json())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
