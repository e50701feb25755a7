"""A child of a zygote as the server sees it: what it is asked, what it answers, how long it takes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from longboat_runtime.reward.graders.child import MESSAGE_CHARACTERS
from longboat_runtime.reward.graders.frames import FrameBuffer, FrameError, encode
from longboat_runtime.reward.graders.sandbox import cpu_limit, limit_cpu
from longboat_runtime.reward.graders.times import WALL_LIMIT_FACTOR, OwnLimit, OwnTime, Processes, Slowdown, cpu_clock
from longboat_runtime.reward.result import FunctionOutcome, OutcomeKind

_ANSWER_BYTES = 64 * 1024


@dataclass(slots=True, eq=False)
class Grading:
    """One grade that was asked for. `sample` is JSON of a RewardSample; `timeout` and `own_limit`, a learned one, are in own seconds.

    `case_seconds` is the limit of each test case, None where there are none. Where there are, `own_limit` is one of each case, too, and
    the case runner sees to both. `alone` is set once it has to be graded by a process of its own. `begun` is called when it begins,
    `done` once, unless it is cancelled.
    """

    sample: bytes
    timeout: float
    seed: int
    done: Callable[[FunctionOutcome], None]
    case_seconds: float | None
    begun: Callable[[], None]
    own_limit: float | None = None
    alone: bool = False
    # Times of the monotonic clock and of the process' CPU clock when the sample was sent.
    started: float = 0.0
    cpu: float = 0.0
    own: OwnLimit | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Holds what came from a child: an outcome, or that it `refused` to go on; `leave` says why it grades no more."""

    outcome: FunctionOutcome | None = None
    refused: str | None = None
    leave: str | None = None


@dataclass(slots=True, eq=False)
class Supervised:
    """A child. `on_readable` is called when there is something to read from it.

    Its process has no more than one sample at a time: that of `grading`. While that is None nothing but its end may be read from it.
    """

    number: int
    stays: bool
    socket: socket.socket
    loop: asyncio.AbstractEventLoop
    on_readable: Callable[[Supervised], None]
    # The node's slowdown, and whether the kernel counts how long threads wait for a CPU.
    slowdown: Slowdown
    waiting_counted: bool
    pid: int = 0
    # Whether it may refuse to go on; of any other, only graded code says so.
    watched: bool = False
    # Time of the monotonic clock when it was asked for.
    requested_at: float = field(default_factory=time.monotonic)
    grading: Grading | None = None
    # When it stopped taking grades, on the monotonic clock.
    dying: float | None = None
    # When it is killed if it hasn't ended by itself, on the monotonic clock.
    leaving: float | None = None
    # CPU seconds, known once it has ended; they include those of processes that it had waited for.
    used_in_all: float | None = None
    _buffer: FrameBuffer = field(default_factory=lambda: FrameBuffer(_ANSWER_BYTES))
    _unsent: bytes = b""
    _token: int = 0
    # Time of its CPU clock at its last answer.
    _used: float | None = None

    @property
    def zygote_since(self) -> float | None:
        """Time since which its zygote has had something to do for it: to fork it, or to say that it has ended."""
        return self.dying if self.dying is not None else None if self.pid else self.requested_at

    def begin(self, pid: int) -> None:
        """Begins to read from its process, which has been forked."""
        self.pid = pid
        self.socket.setblocking(False)
        # By number: the event loop describes the object in an error that it catches.
        self.loop.add_reader(self.socket.fileno(), self.on_readable, self)

    def grade(self, grading: Grading) -> None:
        """Sends it a sample."""
        self.grading = grading
        grading.started, grading.cpu = time.monotonic(), self.cpu() if self._used is None else self._used
        # Code that a grade leaves behind doesn't know the next grade's token, and so can't answer for it.
        self._token = int.from_bytes(os.urandom(8), "big")
        if not self.stays:
            limit_cpu(self.pid, cpu_limit(grading.timeout))
        request: dict[str, Any] = {"token": self._token, "seed": grading.seed, "seconds": grading.case_seconds}
        if grading.case_seconds is not None:
            request["own"] = {"seconds": grading.own_limit, "slowdown": self.slowdown.factor}
        elif grading.own_limit is not None:
            grading.own = self._limit(grading)
        self._send(encode(request, grading.sample))

    def read(self) -> Answer | None:
        """Returns the child's answer; None if it isn't complete yet.

        Raises FrameError for anything but exactly one answer, ConnectionError once the child has closed its end.
        """
        try:
            data = self.socket.recv(_ANSWER_BYTES)
        except BlockingIOError:
            return None
        if not data:
            raise ConnectionError("it closed its connection")
        messages = self._buffer.feed(data)
        if not messages:
            return None
        if len(messages) > 1 or self.grading is None or not self._buffer.empty:
            raise FrameError("more than one answer")
        [(message, _)] = messages
        try:
            if self.watched and "refused" in message:
                return Answer(refused=str(message["refused"])[:MESSAGE_CHARACTERS])
            if message["token"] != self._token:
                raise FrameError("not an answer to what was asked")
            leave = message.get("leave")
            return Answer(self._measured(message["outcome"]), leave=None if leave is None else str(leave)[:200])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise FrameError(f"not an answer: {error}") from error

    def overdue(self, now: float) -> FunctionOutcome | None:
        """Returns the outcome of a grading whose time is up: its own, or the process' CPU time, or at last that on the wall; else None.

        One that isn't measured from its beginning (see `grade`) is measured once it takes longer than most. What it did before is
        forgiven: what its process had waited for a CPU by then isn't known, and it would cost all others to find out.
        """
        grading = self.grading
        if grading is None:
            return None
        if self.cpu() - grading.cpu >= cpu_limit(grading.timeout):
            return self.outcome(OutcomeKind.TIMEOUT, "killed at the CPU limit")
        if grading.own is None:
            if now >= grading.started + _QUICK * grading.timeout:
                grading.own = self._limit(grading)
            return None
        if grading.own.passed():
            if not grading.own.limited:
                return self.outcome(OutcomeKind.TIMEOUT, f"killed after {grading.timeout:g} s")
            message = f"killed after {grading.own_limit:.3g} s, the limit that was learned"
            return replace(self.outcome(OutcomeKind.TIMEOUT, message), limited=True)
        if now < grading.started + WALL_LIMIT_FACTOR * grading.timeout:
            return None
        if grading.own.own.cpu_seconds >= grading.timeout:
            return self.outcome(OutcomeKind.TIMEOUT, f"killed after {now - grading.started:g} s of wall time")
        message = f"it hardly got a CPU: it ran for less than {grading.timeout:g} s of {now - grading.started:g} s"
        return self.outcome(OutcomeKind.GRADER_ERROR, message)

    def due(self, now: float) -> float:
        """Returns when to look at its grading next, of the monotonic clock, to notice soon that its time is up; infinity without one."""
        grading = self.grading
        if grading is None:
            return float("inf")
        used = self.cpu() - grading.cpu if now > grading.started else 0.0
        remaining = (cpu_limit(grading.timeout) - used) / _CPUS
        at = min(grading.started + WALL_LIMIT_FACTOR * grading.timeout, now + max(remaining, _LOOK_SECONDS))
        if grading.own is None:
            return min(at, grading.started + _QUICK * grading.timeout)
        remaining = grading.own.first_look() if now <= grading.started else grading.own.remaining()
        return min(at, now + max(remaining, _CLOSE_LOOK_SECONDS))

    def outcome(self, kind: OutcomeKind, message: str) -> FunctionOutcome:
        """Makes the outcome of its grading, as of now."""
        assert self.grading is not None
        return self._timed_outcome(self.grading, kind, 0.0, message, self.cpu())

    def unanswered(self, status: int, output: str) -> FunctionOutcome:
        """Makes the outcome of its grading, now that the process has ended with `status` (as waitpid gives it)."""
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGXCPU:
            return self.outcome(OutcomeKind.TIMEOUT, "killed at the CPU limit")
        how = f"was ended by {_SIGNALS.get(-code, f'signal {-code}')}" if code < 0 else f"exited with code {code}"
        printed = f"; its last output: {output}" if output else ""
        return self.outcome(OutcomeKind.GRADER_ERROR, f"the grade's process {how} before it answered{printed}")

    def cpu(self) -> float:
        """Returns the process' CPU seconds, threads included; 0 from when it is reaped until its zygote has told what it used in all."""
        return cpu_clock(self.pid) if self.used_in_all is None else self.used_in_all

    def close(self) -> None:
        """Closes the connection: nothing is read from it any more."""
        number = self.socket.fileno()
        if number >= 0:
            self.stop_reading()
            if self._unsent:
                self.loop.remove_writer(number)
            self.socket.close()

    def stop_reading(self) -> None:
        """Calls `on_readable` no more: what it says from now on is left to `read`."""
        self.loop.remove_reader(self.socket.fileno())

    def _measured(self, outcome: Mapping[str, Any]) -> FunctionOutcome:
        assert self.grading is not None
        kind, score = OutcomeKind(outcome["kind"]), float(outcome["score"])
        self._used = self.cpu()
        taken = self._timed_outcome(self.grading, kind, score, str(outcome["message"]), self._used)
        if self.grading.case_seconds is not None:
            # A case runner's times are trusted, since it measures its programs. Elsewhere graded code might have written them.
            cpu, own = taken.cpu_seconds + float(outcome.get("cpu_seconds", 0.0)), outcome.get("own_seconds")
            learned = (None, False) if own is None else (float(own), bool(outcome["limited"]))
            taken = replace(taken, cpu_seconds=cpu, own_seconds=learned[0], limited=learned[1])
        if not self.waiting_counted:
            self.slowdown.learn(taken.cpu_seconds, max(taken.seconds - taken.cpu_seconds, 0.0))
        return taken

    def _timed_outcome(
        self, grading: Grading, kind: OutcomeKind, score: float, message: str, cpu: float
    ) -> FunctionOutcome:
        """Makes an outcome now that its process has used `cpu` seconds of CPU in all."""
        seconds, message = time.monotonic() - grading.started, message[:MESSAGE_CHARACTERS]
        if grading.own is None or grading.own_limit is None or grading.case_seconds is not None:
            return FunctionOutcome(kind, score, seconds, message, max(cpu - grading.cpu, 0.0))
        own = grading.own.own
        used = own.cpu_seconds if self.used_in_all is None else max(cpu - grading.cpu, 0.0)
        return FunctionOutcome(kind, score, seconds, message, used, max(own.look(), used))

    def _limit(self, grading: Grading) -> OwnLimit:
        """Measures it from now on."""
        processes = Processes(self.pid, counted=self.waiting_counted, alone=self.stays)
        own = OwnTime(processes, self.slowdown)
        return OwnLimit(own, grading.timeout, None if grading.case_seconds is not None else grading.own_limit)

    def _send(self, data: bytes) -> None:
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # It has ended; its socket reports that as well.
        self._unsent = data[sent:]
        if self._unsent:
            self.loop.add_writer(self.socket.fileno(), self._send_on)

    def _send_on(self) -> None:
        self.loop.remove_writer(self.socket.fileno())
        self._send(self._unsent)


_CPUS = len(os.sched_getaffinity(0))
_LOOK_SECONDS = 0.05
# Close to its limit.
_CLOSE_LOOK_SECONDS = 0.01
# A grade that is over within this share of its limit isn't measured for it.
_QUICK = 0.05
# Most real-time signals have no name.
_SIGNALS = {number.value: number.name for number in signal.Signals}
