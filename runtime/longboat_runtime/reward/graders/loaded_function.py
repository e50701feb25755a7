"""A reward function, loaded and ready to be called: its zygote's process, and the children that grade for it.

Over 400 lines: children are forked, given samples, ended and replaced by one object, since each of these may cross any other.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from longboat_crds.reward_kinds import RewardIsolation
from longboat_runtime.problems import SpecProblem
from longboat_runtime.reward.function import SandboxSettings
from longboat_runtime.reward.graders.frames import FrameError
from longboat_runtime.reward.graders.supervised import Answer, Grading, Supervised
from longboat_runtime.reward.graders.times import Slowdown, waiting_is_counted
from longboat_runtime.reward.graders.zygote_process import MOST_AT_ONCE, ZygoteProcess
from longboat_runtime.reward.result import FunctionOutcome, OutcomeKind

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


class LoadedFunction:
    """Starts a zygote for `function` (JSON of a RewardFunction) when it is first needed, and again if it has died.

    It has up to `processes` children that grade and one in reserve, or up to _FORKED_AHEAD where each grades once. `isolation` is what is
    in force; where Auto falls back to PerGrade, `reason` says why, and `fell_back` is called. `zygotes` holds the process ids of running
    zygotes and is kept up to date.
    """

    def __init__(
        self,
        function: Mapping[str, Any],
        field: str,
        config_maps: Path,
        scratch: Path,
        zygotes: set[int],
        processes: int,
        isolation: RewardIsolation,
        fell_back: Callable[[LoadedFunction], None],
    ) -> None:
        self.name = str(function["name"])
        self._sandbox = None if function.get("sandbox") is None else SandboxSettings.from_json(function["sandbox"])
        # A case runner grades once.
        self.isolation, self.reason = (isolation if self._sandbox is None else RewardIsolation.PER_GRADE), ""
        self.footprint: Mapping[str, Any] = {}
        # Why children were replaced, and how often.
        self.replaced: Counter[str] = Counter()
        self._load_request = {
            "function": dict(function),
            "field": field,
            "config_maps": str(config_maps),
            "scratch": str(scratch),
        }
        self._field = field
        self._zygotes, self._processes, self._fell_back = zygotes, processes, fell_back
        self._starting = asyncio.Lock()
        self._zygote: ZygoteProcess | None = None
        self._restarting: asyncio.Task[None] | None = None
        self._numbers = 0
        # All that haven't ended; those without a pid are being forked.
        self._children: dict[int, Supervised] = {}
        self._dying = 0
        self._idle: list[Supervised] = []
        self._waiting: deque[Grading] = deque()
        self._alone: deque[Grading] = deque()
        self._slowdown, self._waiting_counted = Slowdown(), waiting_is_counted()
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._look_at = float("inf")

    async def load(self) -> None:
        """Imports the function. Raises SpecProblem if it can't be loaded."""
        async with self._starting:
            if self._zygote is not None and self._zygote.dead:
                await self._zygote.close()
                self._zygote = None
            if self._zygote is None:
                self._zygote = await self._start()
        self._provide()

    @property
    def has_cases(self) -> bool:
        """Whether a response is run against test cases, with a limit for each."""
        return self._sandbox is not None

    def longest_seconds(self, seconds: float) -> float:
        """Returns a grade's timeout in own seconds: `seconds`, or, with test cases, a bound for all of them if each may take `seconds`."""
        return seconds if self._sandbox is None else self._sandbox.longest_seconds(seconds)

    def grade(self, grading: Grading) -> None:
        """Has it graded; its `done` is called, later or at once."""
        (self._alone if grading.alone else self._waiting).append(grading)
        self._provide()

    def cancel(self, grading: Grading) -> None:
        """Ends a grading that nobody wants any more, and its process with it; `done` isn't called."""
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
        self._fell_back(self)

    async def close(self) -> None:
        """Ends the zygote and all its grades."""
        self._closed = True
        if self._restarting is not None:
            self._restarting.cancel()
        if self._timer is not None:
            self._timer.cancel()
        async with self._starting:
            if self._zygote is not None:
                await self._zygote.close()
                self._zygote = None

    # --- Children --------------------------------------------------------------------------------------------------

    @property
    def _stays(self) -> bool:
        return self.isolation is not RewardIsolation.PER_GRADE

    def _provide(self) -> None:
        """Gives samples to children that are free, and has as many forked as are missing."""
        if self._closed:
            self._fail("the reward is no longer graded here")
            return
        if self._zygote is None or self._zygote.dead:
            if (self._waiting or self._alone) and (self._restarting is None or self._restarting.done()):
                self._restarting = asyncio.get_running_loop().create_task(self._restart())
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
        assert self._zygote is not None
        numbers, child_ends, watched = [], [], stays and self.isolation is RewardIsolation.AUTO
        for _ in range(min(count, MOST_AT_ONCE)):
            self._numbers += 1
            own_end, child_end = socket.socketpair()
            child = Supervised(
                self._numbers,
                stays,
                own_end,
                asyncio.get_running_loop(),
                self._read,
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
        if self._zygote is not None:
            self._zygote.tell({"kill": child.number})

    # --- Messages of the zygote ------------------------------------------------------------------------------------

    def _on_message(self, message: Mapping[str, Any]) -> None:
        match message:
            case {"forked": number, "pid": pid}:
                child = self._children[number]
                if child.dying is None:
                    child.begin(pid)
                    self._free(child, fresh=True)
            case {"failed": number, "error": error}:
                child = self._children.pop(number)
                self._dying -= child.dying is not None
                child.close()
                waiting = self._alone if not child.stays and self._stays else self._waiting
                if waiting:
                    failed = FunctionOutcome(OutcomeKind.GRADER_ERROR, message=f"a grade can't be started: {error}")
                    waiting.popleft().done(failed)
            case {"ended": number, "status": status, "cpu": cpu, "output": output}:
                child = self._children.pop(number)
                child.used_in_all = cpu
                self._ended(child, status, output)

    def _ended(self, child: Supervised, status: int, output: str) -> None:
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
            outcome = child.unanswered(status, output)
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
            self._timer = asyncio.get_running_loop().call_later(max(at - now, 0.0), self._watch)

    def _watch(self) -> None:
        now = time.monotonic()
        self._timer, self._look_at = None, float("inf")
        for child in list(self._children.values()):
            since = child.zygote_since
            if since is not None and now >= since + STUCK_SECONDS and self._zygote is not None:
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

    async def _restart(self) -> None:
        try:
            await self.load()
        except SpecProblem as problem:
            self._fail(str(problem))

    def _fail(self, message: str) -> None:
        """Fails everything that waits, with this message: it can't be graded."""
        waiting = [*self._waiting, *self._alone]
        self._waiting.clear()
        self._alone.clear()
        for grading in waiting:
            grading.done(FunctionOutcome(OutcomeKind.GRADER_ERROR, message=message))

    def _lost(self) -> None:
        """Ends the gradings of all children with grader errors: the zygote has ended, and they with it."""
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

    async def _start(self) -> ZygoteProcess:
        zygote = ZygoteProcess(self._load_request, self._zygotes, self._on_message, self._lost)
        self.footprint = await zygote.footprint(self._field)
        return zygote
