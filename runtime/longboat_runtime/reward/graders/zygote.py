"""A process that has imported one reward function and forks for every grade.

Started by `loaded_function` as `python -m longboat_runtime.reward.graders.zygote FD`, FD being its end of a socket pair. It is single-threaded,
so forking is safe as long as the reward function's module starts no threads when it is imported.
"""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from longboat_runtime import prctl
from longboat_runtime.problems import SpecProblem
from longboat_runtime.reward.adapters import Scorer, load_scorer
from longboat_runtime.reward.function import RewardFunction
from longboat_runtime.reward.graders.child import MESSAGE_CHARACTERS, run_grade
from longboat_runtime.reward.graders.frames import FrameBuffer, FrameError, encode
from longboat_runtime.reward.graders.leftovers import remove_tree
from longboat_runtime.reward.graders.sandbox import Sandbox, limits_for
from longboat_runtime.reward.graders.seccomp import Filter
from longboat_runtime.reward.result import FunctionOutcome, OutcomeKind, RewardSample

# How often it is checked whether killed processes have ended, in seconds.
_REAP_INTERVAL = 0.02


_ANSWER_BYTES = 64 * 1024
_OUTPUT_TAIL_BYTES = 512


@dataclass(slots=True)
class Grading:
    """One running grade. Times are of the monotonic clock, in seconds. The process group's number is its leader's pid."""

    id: int
    pid: int
    pidfd: int
    answer: int
    output: IO[bytes]
    directory: Path
    started: float
    deadline: float
    outcome: FunctionOutcome | None = None
    _buffer: FrameBuffer = field(default_factory=lambda: FrameBuffer(_ANSWER_BYTES))

    def kill(self) -> None:
        """Ends every process of the grade at once; none can leave its group, and what is being forked is included."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def expire(self) -> None:
        """The time is up."""
        if self.outcome is None:
            self.outcome = FunctionOutcome(
                OutcomeKind.TIMEOUT, message=f"killed after {self.deadline - self.started:g} s"
            )
        self.kill()

    def read_answer(self) -> bool:
        """Takes what is in the pipe; True once the answer is complete or can no longer come."""
        if self.outcome is not None:
            return True
        try:
            data = os.read(self.answer, _ANSWER_BYTES)
        except BlockingIOError:
            return False
        try:
            messages = self._buffer.feed(data)
            if messages:
                self.outcome = FunctionOutcome.from_json(messages[0])
        except (FrameError, KeyError, TypeError, ValueError) as error:
            self.outcome = FunctionOutcome(
                OutcomeKind.GRADER_ERROR, message=f"the grade's answer can't be read: {error}"
            )
        return not data or self.outcome is not None

    def collect(self, status: int, ended: float) -> FunctionOutcome:
        """The outcome, now that the leader has ended with `status` (as waitpid gives it)."""
        outcome = self.outcome or self._unanswered(status)
        return FunctionOutcome(outcome.kind, outcome.score, ended - self.started, outcome.message[:MESSAGE_CHARACTERS])

    def _unanswered(self, status: int) -> FunctionOutcome:
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGXCPU:
            return FunctionOutcome(OutcomeKind.TIMEOUT, message="killed at the CPU limit")
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return FunctionOutcome(
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


class Zygote:
    """The loop of one zygote. `scratch` is its directory, in which every grade gets one of its own."""

    def __init__(self, control: socket.socket, score: Scorer, scratch: Path, protected: Sequence[int]) -> None:
        self._control, self._score, self._scratch, self._calls = control, score, scratch, Filter(protected)
        self._requests = FrameBuffer()
        self._running: dict[int, Grading] = {}
        self._ending: list[Grading] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)

    def run(self) -> None:
        """Grades until the server closes its end; then everything is killed."""
        while True:
            for key, _ in self._selector.select(self._patience()):
                if key.fileobj is self._control:
                    data = self._control.recv(2**20)
                    if not data:
                        return self._end()
                    for request in self._requests.feed(data):
                        self._start(request)
                elif key.data in self._running:  # one select may name a grade twice, and the first may have finished it
                    self._progress(self._running[key.data], key.fd)
            now = time.monotonic()
            for grading in self._running.values():
                if grading.deadline <= now:
                    grading.expire()
                    grading.deadline = float("inf")
            self._ending = [grading for grading in self._ending if not self._gone(grading)]

    def _patience(self) -> float | None:
        """How long nothing has to be done, in seconds; None: until something comes."""
        if self._ending:
            return _REAP_INTERVAL
        next_deadline = min((grading.deadline for grading in self._running.values()), default=float("inf"))
        return None if next_deadline == float("inf") else max(next_deadline - time.monotonic(), 0.0)

    def _start(self, request: Mapping[str, Any]) -> None:
        try:
            self._fork(request["id"], RewardSample(**request["sample"]), float(request["timeout"]))
        except OSError as error:
            self._answer(
                request["id"], FunctionOutcome(OutcomeKind.GRADER_ERROR, message=f"a grade can't be started: {error}")
            )

    def _fork(self, identity: int, sample: RewardSample, timeout: float) -> None:
        directory = Path(tempfile.mkdtemp(dir=self._scratch))
        output = tempfile.TemporaryFile(dir=self._scratch)  # noqa: SIM115 - lives as long as the grade
        sandbox = Sandbox(directory, limits_for(timeout), self._calls)
        answer, child_answer = os.pipe()
        os.set_blocking(answer, False)
        started = time.monotonic()
        pid = os.fork()
        if pid == 0:
            run_grade(self._score, sample, sandbox, answer=child_answer, output=output)
        os.close(child_answer)
        sandbox.close()
        _lead_group(pid)
        grading = Grading(identity, pid, os.pidfd_open(pid), answer, output, directory, started, started + timeout)
        self._running[pid] = grading
        self._selector.register(grading.pidfd, selectors.EVENT_READ, pid)
        self._selector.register(grading.answer, selectors.EVENT_READ, pid)

    def _progress(self, grading: Grading, fd: int) -> None:
        """The answer's pipe or the leader's pidfd is readable."""
        if fd == grading.answer:
            if grading.read_answer():
                self._selector.unregister(grading.answer)
                grading.kill()
            return
        self._finish(grading)

    def _finish(self, grading: Grading) -> None:
        """The leader has ended; as long as it isn't reaped its number is taken, so the group killed is the right one."""
        grading.read_answer()
        grading.kill()
        _, status = os.waitpid(grading.pid, 0)
        outcome = grading.collect(status, time.monotonic())
        for fd in (grading.pidfd, grading.answer):
            if fd in self._selector.get_map():
                self._selector.unregister(fd)
        grading.close()
        del self._running[grading.pid]
        self._ending.append(grading)
        self._answer(grading.id, outcome)

    def _answer(self, identity: int, outcome: FunctionOutcome) -> None:
        self._control.sendall(encode({"id": identity, "outcome": outcome.to_json()}))

    def _gone(self, grading: Grading) -> bool:
        """Reaps what the leader left in its group, orphans that the kernel has handed to us; True when all have ended."""
        try:
            while os.waitpid(-grading.pid, os.WNOHANG)[0] != 0:
                continue
        except ChildProcessError:
            remove_tree(grading.directory)
            return True
        return False

    def _end(self) -> None:
        for grading in self._running.values():
            grading.kill()


def _lead_group(pid: int) -> None:
    """Both parent and child do this, so that whichever is first the child leads its group before anything is done to it."""
    try:
        os.setpgid(pid, pid)
    except ProcessLookupError:
        # It has ended already; the zombie keeps the number.
        return


def main(fd: int) -> None:
    """Reads the request to load a function, answers, and grades."""
    os.dup2(2, 1)
    prctl.die_with_parent()
    prctl.hide_memory()
    prctl.adopt_orphans()
    control = socket.socket(fileno=fd)
    request = _first_message(control)
    try:
        score = load_scorer(
            RewardFunction.from_json(request["function"]), request["field"], Path(request["config_maps"])
        )
    except SpecProblem as problem:
        control.sendall(encode({"problem": list(problem.args)}))
        return
    control.sendall(encode({"loaded": True}))
    gc.collect()
    gc.freeze()
    Zygote(control, score, Path(request["scratch"]), [1, os.getppid(), os.getpid()]).run()


def _first_message(control: socket.socket) -> dict[str, Any]:
    buffer = FrameBuffer()
    while data := control.recv(2**20):
        if messages := buffer.feed(data):
            return messages[0]
    sys.exit("the server closed the connection before it named a function")


if __name__ == "__main__":
    main(int(sys.argv[1]))
