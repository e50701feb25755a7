"""One running grade as its zygote sees it."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from longboat_runtime.reward.graders.child import MESSAGE_CHARACTERS
from longboat_runtime.reward.graders.frames import FrameBuffer, FrameError
from longboat_runtime.reward.outcome import Outcome, OutcomeKind

_ANSWER_BYTES = 64 * 1024
_OUTPUT_TAIL_BYTES = 512


@dataclass(slots=True)
class Grading:
    """Times are of the monotonic clock, in seconds. The group's number is the leader's pid."""

    id: int
    pid: int
    pidfd: int
    answer: int
    output: IO[bytes]
    directory: Path
    started: float
    deadline: float
    outcome: Outcome | None = None
    _buffer: FrameBuffer = field(default_factory=lambda: FrameBuffer(_ANSWER_BYTES))

    def kill(self) -> None:
        """Ends every process of the grade at once; none can leave its group, and forks that run meanwhile are caught."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def expire(self) -> None:
        """The time is up."""
        if self.outcome is None:
            self.outcome = Outcome(OutcomeKind.TIMEOUT, message=f"killed after {self.deadline - self.started:g} s")
        self.kill()

    def read_answer(self) -> bool:
        """Takes what is in the pipe; True once the answer is complete or can't come any more."""
        if self.outcome is not None:
            return True
        try:
            data = os.read(self.answer, _ANSWER_BYTES)
        except BlockingIOError:
            return False
        try:
            messages = self._buffer.feed(data)
            if messages:
                self.outcome = Outcome.from_json(messages[0])
        except (FrameError, KeyError, TypeError, ValueError) as error:
            self.outcome = Outcome(OutcomeKind.GRADER_ERROR, message=f"the grade's answer can't be read: {error}")
        return not data or self.outcome is not None

    def collect(self, status: int, ended: float) -> Outcome:
        """The outcome, now that the leader has ended with `status` (as waitpid gives it)."""
        outcome = self.outcome or self._unanswered(status)
        return Outcome(outcome.kind, outcome.score, ended - self.started, outcome.message[:MESSAGE_CHARACTERS])

    def _unanswered(self, status: int) -> Outcome:
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGXCPU:
            return Outcome(OutcomeKind.TIMEOUT, message="killed at the CPU limit")
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return Outcome(
            OutcomeKind.GRADER_ERROR, message=f"the grade's process {how} before it answered{self._output_tail()}"
        )

    def _output_tail(self) -> str:
        size = os.fstat(self.output.fileno()).st_size
        tail = os.pread(self.output.fileno(), _OUTPUT_TAIL_BYTES, max(size - _OUTPUT_TAIL_BYTES, 0))
        text = tail.decode(errors="replace").strip()
        return f"; its last output: {text}" if text else ""

    def close(self) -> None:
        """Gives file descriptors back; the directory is removed by the zygote once every process has ended."""
        os.close(self.pidfd)
        os.close(self.answer)
        self.output.close()
