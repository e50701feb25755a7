"""Supervises what grades for one reward: the children of its zygote, as the server sees them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_crds.reward_kinds import RewardIsolation
from longboat_graders.frames import FrameBuffer, FrameError, encode
from longboat_graders.messages import MESSAGE_CHARACTERS, FunctionOutcome, OutcomeKind, SandboxSettings
from longboat_graders.sandbox import Limits, cpu_limit, limit_cpu
from longboat_graders.times import (
    WALL_LIMIT_FACTOR,
    OwnLimit,
    OwnTime,
    Processes,
    Slowdown,
    cpu_clock,
    waiting_is_counted,
)
from longboat_graders.zygote_process import MOST_AT_ONCE, ZygoteHost

log = structlog.get_logger()

# A zygote that hasn't followed a command for this long is stuck.
STUCK_SECONDS = 15.0
# How long a process that has answered its only sample has to end, before it is killed.
_LEAVE_SECONDS = 0.05
# This many processes that grade once are forked ahead, as soon as no more than _FEWEST_AHEAD are left: each request costs the zygote time.
_FORKED_AHEAD, _FEWEST_AHEAD = 4, 1
# How many different reasons for replacing children are counted.
_REASONS = 32
_STARTS_A_PROCESS = "it starts a process or a program"
_ANSWER_BYTES = 64 * 1024
# That of a group of 1,024 responses has a message and metrics for each.
_MOST_ANSWER_BYTES = 8 * 2**20
_CPUS = len(os.sched_getaffinity(0))
_LOOK_SECONDS = 0.05
# Close to its limit.
_CLOSE_LOOK_SECONDS = 0.01
# A grade that is over within this share of its limit isn't measured for it.
_QUICK = 0.05
# Most real-time signals have no name.
_SIGNALS = {number.value: number.name for number in signal.Signals}


class LoadedFunction:
    """A reward function, ready to be called. Starts a zygote for `function` (JSON of a RewardFunction) when needed, and again if it has died.

    It has up to `processes` children that grade and one in reserve, or up to _FORKED_AHEAD where each grades once. `isolation` is what is
    in force; where Auto falls back to PerGrade, `reason` says why, and `fell_back` is done.
    """

    def __init__(
        self,
        function: Mapping[str, Any],
        field: str,
        config_maps: Path,
        scratch: Path,
        processes: int,
        isolation: RewardIsolation,
    ) -> None:
        self.name = str(function["name"])
        self._sandbox = None if function.get("sandbox") is None else SandboxSettings.from_json(function["sandbox"])
        # A case runner grades once.
        self.isolation, self.reason = (isolation if self._sandbox is None else RewardIsolation.PER_GRADE), ""
        self._loop = asyncio.get_running_loop()
        self.fell_back: asyncio.Future[None] = self._loop.create_future()
        self.footprint: Mapping[str, Any] = {}
        self.token_ids = False
        # What the function is made of (see `sources`), None until it is loaded. `changed` is called if a later zygote loads another one.
        self.sources: Mapping[str, str] | None = None
        self.changed: Callable[[], None] = lambda: None
        # Why children were replaced, and how often.
        self.replaced: Counter[str] = Counter()
        request = {
            "function": dict(function),
            "field": field,
            "config_maps": str(config_maps),
            "scratch": str(scratch),
        }
        self._zygote = ZygoteHost(
            self.name, "longboat_graders.zygote", request, field, Reason.REWARD_FUNCTION_INVALID, self
        )
        self._processes = processes
        self._numbers = 0
        # All that haven't ended; those without a pid are being forked.
        self._children: dict[int, Supervised] = {}
        self._dying = 0
        self._idle: list[Supervised] = []
        self._waiting: deque[Grading] = deque()
        self._alone: deque[Grading] = deque()
        self._slowdown, self._waiting_counted = Slowdown(), waiting_is_counted()
        self._timer: asyncio.TimerHandle | None = None
        self._look_at = float("inf")

    async def load(self) -> None:
        """Imports the function. Raises SpecProblem if it can't be loaded."""
        await self._zygote.load()

    @property
    def zygotes(self) -> Set[int]:
        """Process ids of its zygotes: the running one, and one that is being ended."""
        return self._zygote.pids

    @property
    def has_cases(self) -> bool:
        """Whether a response is run against test cases, with a limit for each."""
        return self._sandbox is not None

    def longest_seconds(self, seconds: float) -> float:
        """Returns a grade's timeout in own seconds: `seconds`, or, with test cases, a bound for all of them if each may take `seconds`."""
        return seconds if self._sandbox is None else self._sandbox.longest_seconds(seconds)

    def grade(self, grading: Grading) -> None:
        """Has it graded: its `outcome` is set, later or at once."""
        (self._alone if grading.alone else self._waiting).append(grading)
        self._provide()

    def cancel(self, grading: Grading) -> None:
        """Ends a grading that nobody wants any more, and its process with it; its `outcome` is cancelled."""
        grading.outcome.cancel()
        for waiting in (self._waiting, self._alone):
            if grading in waiting:
                waiting.remove(grading)
                return
        for child in list(self._children.values()):
            if child.grading is grading:
                child.grading = None
                self._kill(child)
        self._provide()

    def fall_back(self, reason: str) -> None:
        """Gives every grade that begins from here on a process of its own, if isolation is Auto; else does nothing."""
        if self.isolation is not RewardIsolation.AUTO:
            return
        self.isolation, self.reason = RewardIsolation.PER_GRADE, " ".join(reason.split())
        log.info("a reward is graded by a process for each grade from now on", reward=self.name, reason=self.reason)
        self._waiting.extendleft(reversed(self._alone))
        self._alone.clear()
        for child in [child for child in self._children.values() if child.stays and child.grading is None]:
            self._kill(child)
        self.fell_back.set_result(None)

    async def close(self) -> None:
        """Ends the zygote and all its grades."""
        if self._timer is not None:
            self._timer.cancel()
        await self._zygote.close()
        self._provide()

    # --- Children --------------------------------------------------------------------------------------------------

    @property
    def _stays(self) -> bool:
        return self.isolation is not RewardIsolation.PER_GRADE

    def _provide(self) -> None:
        """Gives samples to children that are free, and has as many forked as are missing."""
        if self._zygote.closed:
            self._fail("the reward is no longer graded here")
            return
        if not self._zygote.running:
            if self._waiting or self._alone:
                self._zygote.restart()
            return
        while self._waiting and self._idle:
            self._begin(self._idle.pop(), self._waiting.popleft())
        ahead, too_few = (1, 0) if self._stays else (_FORKED_AHEAD, _FEWEST_AHEAD)
        if not self._alone and (
            len(self._idle) > too_few or len(self._children) - self._dying >= self._processes + ahead
        ):
            return
        living = [child for child in self._children.values() if child.dying is None]
        starting = sum(not child.pid for child in living if child.stays == self._stays)
        present = sum(child.stays == self._stays for child in living)
        spare = len(self._idle) + starting - len(self._waiting)
        if spare <= too_few:
            self._fork(min(ahead - spare, self._processes + ahead - present), self._stays)
        if self._stays:
            unforked = sum(not child.pid for child in living if not child.stays)
            self._fork(len(self._alone) - unforked, stays=False)

    def _fork(self, count: int, stays: bool) -> None:
        """Asks for so many, or for as many as can be asked for at once: once they are there it is asked for more."""
        if count <= 0:
            return
        numbers, child_ends, watched = [], [], stays and self.isolation is RewardIsolation.AUTO
        for _ in range(min(count, MOST_AT_ONCE)):
            self._numbers += 1
            own_end, child_end = socket.socketpair()
            child = Supervised(
                self._numbers,
                stays,
                own_end,
                self._loop,
                self._slowdown,
                self._waiting_counted,
                watched=watched,
            )
            self._children[child.number] = child
            numbers.append(child.number)
            child_ends.append(child_end)
        self._zygote.tell({"fork": numbers, "stays": stays, "watched": watched}, child_ends)
        for child_end in child_ends:
            child_end.close()
        self._watch_at(child.requested_at + STUCK_SECONDS, child.requested_at)

    def _free(self, child: Supervised, *, fresh: bool = False) -> None:
        """Makes use of a child that could grade, or ends one of a kind that isn't needed.

        Whoever has graded last is asked first; a `fresh` one is the reserve.
        """
        if child.dying is not None:
            return
        if child.stays != self._stays and not (self._alone and not child.stays):
            self._kill(child)
        elif child.stays == self._stays:
            self._idle.insert(0 if fresh else len(self._idle), child)
        else:
            self._begin(child, self._alone.popleft())
        self._provide()

    def _begin(self, child: Supervised, grading: Grading) -> None:
        child.grade(grading)
        now = grading.started
        self._watch_at(child.due(now), now)

    def _read(self, child: Supervised) -> None:
        """Reads from a child that has said something, or ended."""
        try:
            answer = child.read()
        except ConnectionError:
            # It has ended, or nearly; the zygote reports its status.
            self._kill(child)
            return
        except FrameError as error:
            self._end_grading(child, f"the grade's answer can't be read: {error}")
            self._kill(child)
            return
        if answer is not None:
            self._answered(child, answer)

    def _answered(self, child: Supervised, answer: Answer) -> None:
        if answer.refused is not None or answer.outcome is None:
            self._violated(child, f"a grade {answer.refused}")
            return
        grading, child.grading = child.grading, None
        assert grading is not None
        if answer.leave is not None:
            counted = answer.leave in self.replaced or len(self.replaced) < _REASONS
            self.replaced[answer.leave if counted else "something else"] += 1
        if not child.stays:
            self._leave(child)
        elif answer.leave is not None:
            self._kill(child)
        else:
            self._free(child)
        grading.done(answer.outcome)

    def _violated(self, child: Supervised, reason: str) -> None:
        """Ends a child that stays and did what only a process of one grade may do; falls back, and has its sample graded again."""
        grading, child.grading = child.grading, None
        self._kill(child)
        self.fall_back(reason)
        if grading is not None:
            self._waiting.appendleft(grading)
        self._provide()

    def _end_grading(self, child: Supervised, message: str) -> None:
        """Ends a grading without an answer that could be read.

        If the process stays and isolation isn't Shared, the sample is graded again, alone; else the outcome is a grader error.
        """
        grading = child.grading
        if grading is None:
            return
        if child.stays and self.isolation is not RewardIsolation.SHARED:
            grading.alone, child.grading = True, None
            (self._alone if self._stays else self._waiting).appendleft(grading)
            return
        outcome = child.outcome(OutcomeKind.GRADER_ERROR, message)
        child.grading = None
        grading.done(outcome)

    def _leave(self, child: Supervised) -> None:
        """Takes leave of a child that has answered and is to end by itself; if it hasn't after _LEAVE_SECONDS, it is killed."""
        if child.dying is None:
            child.dying = time.monotonic()
            self._dying += 1
            child.leaving = child.dying + _LEAVE_SECONDS
            self._watch_at(child.leaving, child.dying)
        child.close()

    def _kill(self, child: Supervised) -> None:
        """Ends it. Whether that happened the zygote says."""
        if child in self._idle:
            self._idle.remove(child)
        if child.dying is None:
            child.dying = time.monotonic()
            self._dying += 1
            self._end(child)
            self._watch_at(child.dying + STUCK_SECONDS, child.dying)
        if child.grading is None:
            child.close()
        else:
            child.stop_reading()

    def _end(self, child: Supervised) -> None:
        child.leaving = None
        self._zygote.tell({"kill": child.number})

    # --- Messages of the zygote ------------------------------------------------------------------------------------

    def heard(self, message: Mapping[str, Any]) -> None:
        """Follows what the zygote says about a child; see `ZygoteOwner`."""
        match message:
            case {"forked": number, "pid": pid}:
                child = self._children[number]
                if child.dying is None:
                    child.begin(pid)
                    # By number: the event loop describes the object in an error that it catches.
                    self._loop.add_reader(child.socket.fileno(), self._read, child)
                    self._free(child, fresh=True)
            case {"failed": number, "error": error}:
                child = self._children.pop(number)
                self._dying -= child.dying is not None
                child.close()
                waiting = self._alone if not child.stays and self._stays else self._waiting
                if waiting:
                    failed = FunctionOutcome(OutcomeKind.GRADER_ERROR, message=f"a grade can't be started: {error}")
                    waiting.popleft().done(failed)
            case {"ended": number, "status": status, "cpu": cpu, "output": output, "crowded": crowded}:
                child = self._children.pop(number)
                child.used_in_all = cpu
                self._ended(child, status, output, crowded=crowded)

    def _ended(self, child: Supervised, status: int, output: str, *, crowded: bool) -> None:
        if child.dying is None:
            # Its last output may still be unread.
            child.dying = time.monotonic()
        else:
            self._dying -= 1
        if child.grading is not None:
            self._read_last(child)
        if child in self._idle:
            self._idle.remove(child)
        grading = child.grading
        if grading is not None:
            outcome = child.unanswered(status, output, crowded=crowded)
            forked = os.waitstatus_to_exitcode(status) == -signal.SIGSYS and child.stays
            if forked and self.isolation is RewardIsolation.AUTO:
                self._violated(child, _STARTS_A_PROCESS)
            elif (
                child.stays and self.isolation is not RewardIsolation.SHARED and outcome.kind is not OutcomeKind.TIMEOUT
            ):
                self._end_grading(child, "")
            else:
                child.grading = None
                grading.done(outcome)
        child.close()
        self._provide()

    def _read_last(self, child: Supervised) -> None:
        with suppress(ConnectionError, FrameError):
            answer = child.read()
            if answer is not None:
                self._answered(child, answer)

    # --- Time ------------------------------------------------------------------------------------------------------

    def _watch_at(self, at: float, now: float) -> None:
        """Looks at all children at `at`, of the monotonic clock, if not before."""
        if at < self._look_at:
            if self._timer is not None:
                self._timer.cancel()
            self._look_at = at
            self._timer = self._loop.call_later(max(at - now, 0.0), self._watch)

    def _watch(self) -> None:
        now = time.monotonic()
        self._timer, self._look_at = None, float("inf")
        for child in list(self._children.values()):
            since = child.zygote_since
            if since is not None and now >= since + STUCK_SECONDS:
                log.warning("a zygote is stuck", reward=self.name)
                self._zygote.kill()
                return
            if child.leaving is not None and now >= child.leaving:
                self._end(child)
            outcome = child.overdue(now)
            if outcome is not None:
                grading, child.grading = child.grading, None
                assert grading is not None
                self._kill(child)
                grading.done(outcome)
        self._provide()
        for child in self._children.values():
            since = child.zygote_since
            self._watch_at(child.leaving or (child.due(now) if since is None else since + STUCK_SECONDS), now)

    # --- The zygote's process --------------------------------------------------------------------------------------

    def loaded(self, answer: Mapping[str, Any]) -> None:
        """Takes note of what the zygote has loaded; see `ZygoteOwner`."""
        self.footprint, self.token_ids = answer["loaded"], bool(answer["token_ids"])
        before, self.sources = self.sources, answer["sources"]
        if before not in (None, self.sources):
            self.changed()
        self._provide()

    def not_loaded(self, problem: SpecProblem) -> None:
        """Fails all that waits; see `ZygoteOwner`."""
        self._fail(str(problem))

    def _fail(self, message: str) -> None:
        """Fails everything that waits, with this message: it can't be graded."""
        waiting = [*self._waiting, *self._alone]
        self._waiting.clear()
        self._alone.clear()
        for grading in waiting:
            grading.done(FunctionOutcome(OutcomeKind.GRADER_ERROR, message=message))

    def lost(self) -> None:
        """Ends the gradings of all children with grader errors; see `ZygoteOwner`."""
        children = list(self._children.values())
        self._children.clear()
        self._idle.clear()
        self._dying = 0
        for child in children:
            if child.grading is not None:
                outcome = child.outcome(OutcomeKind.GRADER_ERROR, "the grader's process died")
                grading, child.grading = child.grading, None
                grading.done(outcome)
            child.close()
        self._provide()


@dataclass(slots=True, eq=False)
class Grading:
    """One grade that was asked for. `sample` is JSON of a RewardSample; `timeout` and `own_limit`, a learned one, are in own seconds.

    `case_seconds` is the limit of each test case, None where there are none. Where there are, `own_limit` is one of each case, too, and
    the case runner sees to both. `alone` is set once it has to be graded by a process of its own.
    """

    sample: bytes
    timeout: float
    seed: int
    case_seconds: float | None
    outcome: asyncio.Future[FunctionOutcome]
    own_limit: float | None = None
    alone: bool = False
    # Times of the monotonic clock and of the process' CPU clock when the sample was sent.
    started: float = 0.0
    cpu: float = 0.0
    own: OwnLimit | None = None

    def done(self, outcome: FunctionOutcome) -> None:
        """Sets the outcome, unless it is cancelled."""
        if not self.outcome.done():
            self.outcome.set_result(outcome)


@dataclass(frozen=True, slots=True)
class Answer:
    """Holds what came from a child: an outcome, or that it `refused` to go on; `leave` says why it grades no more."""

    outcome: FunctionOutcome | None = None
    refused: str | None = None
    leave: str | None = None


@dataclass(slots=True, eq=False)
class Supervised:
    """A child of a zygote: what it is asked, what it answers, how long it takes.

    Its process has no more than one sample at a time: that of `grading`. While that is None nothing but its end may be read from it.
    """

    number: int
    stays: bool
    socket: socket.socket
    loop: asyncio.AbstractEventLoop
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
    _buffer: FrameBuffer = field(default_factory=lambda: FrameBuffer(_MOST_ANSWER_BYTES))
    _unsent: bytes = b""
    _token: int = 0
    # Time of its CPU clock at its last answer.
    _used: float | None = None

    @property
    def zygote_since(self) -> float | None:
        """Time since which its zygote has had something to do for it: to fork it, or to say that it has ended."""
        return self.dying if self.dying is not None else None if self.pid else self.requested_at

    def begin(self, pid: int) -> None:
        """Takes note of its process, which has been forked."""
        self.pid = pid
        self.socket.setblocking(False)

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
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
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

    def unanswered(self, status: int, output: str, *, crowded: bool = False) -> FunctionOutcome:
        """Makes the outcome of its grading, now that the process has ended with `status` (as waitpid gives it).

        One that was ended for having too many processes counts as one that takes too long.
        """
        if crowded:
            return self.outcome(
                OutcomeKind.TIMEOUT, f"killed for having more than {Limits().processes} processes and threads"
            )
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
        """Stops following its socket: what it says from now on is left to `read`."""
        self.loop.remove_reader(self.socket.fileno())

    def _measured(self, outcome: Mapping[str, Any]) -> FunctionOutcome:
        assert self.grading is not None
        kind, score = OutcomeKind(outcome["kind"]), float(outcome["score"])
        self._used = self.cpu()
        taken = self._timed_outcome(self.grading, kind, score, str(outcome["message"]), self._used)
        if "metrics" in outcome or "each" in outcome:
            read = FunctionOutcome.from_json(outcome)
            taken = replace(taken, metrics=read.metrics, each=read.each)
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
