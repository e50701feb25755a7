"""Notices stages that hang, and says where."""

from __future__ import annotations

import asyncio
import faulthandler
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import structlog

from longboat_crds.reasons import Reason
from longboat_runtime.driver.context import Context
from longboat_runtime.driver.observer import Observer
from longboat_runtime.driver.resume import Restored
from longboat_runtime.driver.stages import Stage
from longboat_runtime.rounds.records import SampleState
from longboat_runtime.rounds.view import View
from longboat_runtime.stacks import thread_stacks
from longboat_runtime.status_fragment import Problems, StatusFragment

log = structlog.get_logger()

# How long to wait for processes to return their stacks, in seconds.
STACKS_TIMEOUT = 10.0
# The watchdog looks this often within one deadline, but at most once a second and at least every _LONGEST_PAUSE seconds.
_LOOKS_PER_DEADLINE = 10
_LONGEST_PAUSE = 30.0
# `status.problem.message` gets this much of the end of each stack, as far as it has room.
_EXCERPT = 300
_STANDARD_ERROR = 2


@runtime_checkable
class Inspectable(Protocol):
    """Says where a component's processes hang. Fleet and trainer group implement it."""

    async def stacks(self) -> Mapping[str, str]:
        """Returns `stacks.thread_stacks()` of the component's processes that answer, by name (`trainer-1`; engines have their own names).

        Actors answer beside their other calls, so that one that is stuck in a call answers too.
        """


class Watchdog(Observer):
    """Reports stages that have made no progress for `rounds.stageDeadlineSeconds`, with stacks, until none is stuck any more.

    Also reports reward pools that have no pod left to grade, until one joins, and reward pods that may not grade.
    """

    def __init__(self, context: Context) -> None:
        self._deadline = float(context.job.spec.rounds.stage_deadline_seconds)
        self._pools = [pool.name for pool in context.job.spec.reward_pools]
        self._components, self._stages = context.components, context.stages
        self._problems = Problems(context.news)
        self._view: View | None = None
        self._reported: set[Stage] = set()

    def resume(self, restored: Restored) -> None:
        self._view = restored.run_state.view

    def status(self) -> StatusFragment:
        return StatusFragment(problems=self._problems.present)

    async def run(self) -> None:
        """Watches forever. If the driver's own loop hangs, faulthandler writes its stacks to the log after the deadline."""
        pause = max(1.0, min(self._deadline / _LOOKS_PER_DEADLINE, _LONGEST_PAUSE))
        try:
            while True:
                faulthandler.dump_traceback_later(self._deadline + pause, file=_STANDARD_ERROR)
                await asyncio.sleep(pause)
                await self.look()
        finally:
            faulthandler.cancel_dump_traceback_later()

    async def look(self) -> None:
        """Reports newly stuck stages; clears the report once none is stuck."""
        self._look_for_graders()
        stuck = self._stages.stuck(self._deadline)
        if stuck.keys() - self._reported:
            stacks = await self._stacks()
            names = " and ".join(f"{stage} ({seconds:.0f} s)" for stage, seconds in stuck.items())
            for process, text in stacks.items():
                log.warning("a stage is stuck", stages=names, process=process, stacks=text)
            line = samples_line(self._view, episodes=self._components.episodes is not None)
            text = message(names, line, stacks)
            self._problems.put(Reason.STAGE_STUCK, "spec.rounds.stageDeadlineSeconds", text)
        elif self._reported and not stuck:
            log.info("no stage is stuck any more")
            self._problems.clear(Reason.STAGE_STUCK)
        self._reported = set(stuck)

    def _look_for_graders(self) -> None:
        unserved = self._components.rewards.unserved
        if Stage.START in self._stages.active:
            return  # the first ones are still waited for
        field, text = "", ""
        if unserved:
            field = f"spec.rewardPools[{self._pools.index(unserved[0])}].replicas"
            names = " and ".join(f"pool {name}" for name in unserved)
            text = f"No reward pod of {names} is left, so samples wait for the grades of its rewards. Check its pods, or raise their number."
        self._problems.set(Reason.NO_GRADERS, field, text, bool(unserved))
        text = self._components.rewards.disagreeing
        if text:
            text = f"Some reward pods loaded another reward than the first one, and grade nothing: {text}."
        self._problems.set(Reason.GRADERS_DISAGREE, "spec.rewards", text, bool(text))

    async def _stacks(self) -> dict[str, str]:
        """Returns the stacks by process, the driver's own last. An Inspectable component that doesn't answer is listed with its error."""
        # Reward workers only wait for their graders, which are other processes.
        components = {
            "rollout": self._components.fleet,
            "environment": self._components.episodes,
            "trainer": self._components.trainer,
        }
        stacks: dict[str, str] = {}
        for name, component in components.items():
            if isinstance(component, Inspectable):
                try:
                    stacks |= await asyncio.wait_for(component.stacks(), STACKS_TIMEOUT)
                except Exception as error:  # noqa: BLE001 - whatever keeps it from answering is reported
                    stacks[name] = f"gave no stacks: {error!r}"
        stacks["driver"] = thread_stacks() + "\n\n" + _waiting_tasks()
        return stacks


def samples_line(view: View | None, *, episodes: bool = False) -> str:
    """Returns the number of samples in each state that any is in, as text; `none` without samples. Of `episodes` some wait for a slot."""
    counts = {str(state): count for state, count in view.counts.items()} if view else {}
    if view is not None and episodes:
        running = [s for g in view.groups.values() for s in g.samples if s.state is SampleState.RUNNING]
        waiting = sum(not sample.playing for sample in running)
        counts |= {"running": len(running) - waiting, "waiting for a slot": waiting}
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items()) if count) or "none"


def message(stages: str, samples: str, stacks: dict[str, str]) -> str:
    """Returns the message for the status: `stages`, `samples` (how many in each state), and the end of each thread's stack.

    Ends that are the same, such as those of idle threads, stand there once.
    """
    ends: dict[str, str] = {}
    for process, text in stacks.items():
        for stack in text.split("\n\n"):
            ends.setdefault(stack[-_EXCERPT:], process)
    parts = [
        f"No progress for longer than stageDeadlineSeconds in stage {stages}. Samples: {samples}.",
        "Complete stacks are in the driver's log; their innermost frames:",
        *(f"{process}: ...{end}" for end, process in ends.items()),
    ]
    return "\n".join(parts)


def _waiting_tasks() -> str:
    """Says where each of the driver's own tasks waits, a paragraph each."""
    lines = []
    for task in asyncio.all_tasks():
        frames = task.get_stack(limit=1)
        place = f"{frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else "nowhere yet"
        lines.append(f"{getattr(task.get_coro(), '__qualname__', task.get_name())} waits at {place}")
    return "\n\n".join(sorted(lines))
