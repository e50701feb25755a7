"""A process that has imported one reward function and forks for every grade.

Started by `workshop` as `python -m longboat_runtime.reward.graders.zygote FD`, FD being its end of a socket pair. It is single-threaded,
so forking is safe as long as the reward function's module starts no threads when it is imported.
"""

from __future__ import annotations

import gc
import os
import selectors
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longboat_runtime import prctl
from longboat_runtime.problems import SpecProblem
from longboat_runtime.reward.adapters import Scorer, load_scorer
from longboat_runtime.reward.function import RewardFunction
from longboat_runtime.reward.graders.child import run_grade
from longboat_runtime.reward.graders.frames import FrameBuffer, encode
from longboat_runtime.reward.graders.grading import Grading
from longboat_runtime.reward.graders.limits import limits_for
from longboat_runtime.reward.graders.sandbox import Sandbox
from longboat_runtime.reward.graders.seccomp import Filter
from longboat_runtime.reward.graders.trees import remove_tree
from longboat_runtime.reward.outcome import Outcome, OutcomeKind
from longboat_runtime.reward.sample import RewardSample

# How often killed processes that haven't ended yet are looked after, in seconds.
_REAP_INTERVAL = 0.02


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
        """How long nothing need be done, in seconds."""
        if self._ending:
            return _REAP_INTERVAL
        next_deadline = min((grading.deadline for grading in self._running.values()), default=float("inf"))
        return None if next_deadline == float("inf") else max(next_deadline - time.monotonic(), 0.0)

    def _start(self, request: Mapping[str, Any]) -> None:
        try:
            self._fork(request["id"], RewardSample(**request["sample"]), float(request["timeout"]))
        except OSError as error:
            self._answer(request["id"], Outcome(OutcomeKind.GRADER_ERROR, message=f"a grade can't be started: {error}"))

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

    def _answer(self, identity: int, outcome: Outcome) -> None:
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
    """Both parent and child make the child lead its group, so whoever is first, it does before anything is done to it."""
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
