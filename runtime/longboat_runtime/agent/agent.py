"""The loop that all agents run: observe, decide, act."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from longboat_crds.incarnations import UNANSWERED_EXIT_CODE
from longboat_runtime.agent.actor_logs import ActorLogs
from longboat_runtime.agent.decide import Action, AgentState, Observation, Phase, Rules, next_state
from longboat_runtime.agent.head_probe import Head
from longboat_runtime.agent.health import serve_health
from longboat_runtime.agent.shared_memory import sweep, sweep_buckets
from longboat_runtime.agent.supervisor import KILL_PATIENCE, Supervisor, description
from longboat_runtime.tracebacks import cause

log = structlog.get_logger()

# How often the head is asked for its identity, and shared memory is swept, in seconds.
_POLL_INTERVAL = 0.5
_SWEEP_INTERVAL = 30.0

# Where an agent that gives up leaves its last message: the kubelet reads it, and so the operator finds it.
TERMINATION_LOG = Path("/dev/termination-log")
# The kubelet keeps 4096 bytes in all; a cause for people is short.
_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class Duty:
    """Holds what makes one role's agent different from another's.

    `head` polls the Ray head. `missing` tells what a running child still lacks to be ready, None if nothing. `grace` is how long
    a drain may take, in seconds. `failure_option` tells a child how the one before it failed, as the option's value.
    What is still alive `kill_patience` seconds after SIGKILL can't be ended. `shared_memory` is swept, `actor_logs` are printed.
    `may_leave` asks whether a child that is to end has nothing left to do.
    """

    role: str
    command: Sequence[str]
    head: Callable[[], Awaitable[Head]]
    missing: Callable[[], Awaitable[str | None]]
    health_port: int
    grace: float
    rules: Rules = field(default_factory=Rules)
    environment: Mapping[str, str] = field(default_factory=dict)
    failure_option: str | None = None
    kill_patience: float = KILL_PATIENCE
    shared_memory: Path | None = None
    actor_logs: ActorLogs | None = None
    may_leave: Callable[[], Awaitable[bool]] | None = None


class Agent:
    """One agent, from `run` to its end."""

    def __init__(self, duty: Duty) -> None:
        self._duty = duty
        self._state = AgentState()
        self._stop = asyncio.Event()
        self._supervisor = Supervisor()
        self._failure: str | None = None
        self._stuck: str | None = None
        self._code = 1

    async def run(self) -> int:
        """Runs until SIGTERM or SIGINT (0), or until the child has failed slowly, or too often, or couldn't be ended in time (1).

        A driver that got no answer from the API server is an exception: its exit code is returned, by which the operator knows this end.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        server = await serve_health(self._duty.health_port, self._missing, lambda: self._stuck)
        if self._duty.shared_memory is not None:
            sweep_buckets(self._duty.shared_memory)  # shared memory outlives the container before this one
        helpers = [asyncio.create_task(self._sweep())]
        if self._duty.actor_logs is not None:
            helpers.append(asyncio.create_task(self._duty.actor_logs.follow()))
        try:
            while not self._stop.is_set():
                if not await self._turn():
                    return self._code
                await self._wait()
            log.info("drain", role=self._duty.role)
            deadline = loop.time() + self._duty.grace
            with suppress(TimeoutError):
                await asyncio.wait_for(self._free_to_leave(), self._duty.grace)
            await self._supervisor.drain(max(deadline - loop.time(), 0.0))
            return 0
        finally:
            for helper in helpers:
                helper.cancel()
            server.close()

    async def _free_to_leave(self) -> None:
        """Waits until the child has nothing left to do, or has ended."""
        while self._duty.may_leave is not None and self._supervisor.running and not self._supervisor.exited.is_set():
            if await self._duty.may_leave():
                return
            await asyncio.sleep(_POLL_INTERVAL)

    async def _turn(self) -> bool:
        """Makes one observation, decision and action; returns False when the agent gives up, or couldn't end the child in time."""
        supervisor = self._supervisor
        code = supervisor.exit_code if supervisor.exited.is_set() else None
        head = await self._duty.head()
        observation = Observation(asyncio.get_running_loop().time(), head.cluster, head.refused, head.settled, code)
        before = self._state
        self._state, action = next_state(before, observation, self._duty.rules)
        match action:
            case Action.START:
                supervisor.start([*self._duty.command, *self._failure_arguments()], self._duty.environment)
            case Action.END:
                log.info("end", role=self._duty.role, head=head.cluster, code=code)
                failed = self._state.failures > before.failures
                self._failure = await self._message(code) if failed else None
                return await self._end()
            case Action.GIVE_UP:
                self._failure = await self._message(code)
                log.error("give up", message=self._failure)
                write_termination_message(self._failure)
                if code == UNANSWERED_EXIT_CODE:
                    self._code = code
                await self._end()
                return False
            case Action.NONE:
                return True
        return True

    async def _message(self, code: int | None) -> str:
        await self._supervisor.read_out()
        return termination_message(self._duty.role, code, self._supervisor.last_lines, self._state.failures)

    def _failure_arguments(self) -> list[str]:
        """Returns the arguments that tell the next child how the one before it failed; empty if it didn't, or there is no such option."""
        option = self._duty.failure_option
        return [option, self._failure] if option and self._failure else []

    async def _end(self) -> bool:
        """Ends the child; False if something of it could not be killed in time.

        Until that has ended, or the agent is asked to stop, /healthz fails: another container is needed, and if the kubelet
        can't have it, because this one doesn't end either, another pod.
        """
        stuck = await self._supervisor.end(self._duty.kill_patience)
        self._supervisor.exited.clear()
        if self._duty.shared_memory is not None and not stuck:
            sweep(self._duty.shared_memory, everything=True)
            sweep_buckets(self._duty.shared_memory)
        if not stuck:
            return True
        processes = [description(pid) for pid in sorted(stuck)]
        self._stuck = stuck_message(self._duty.role, processes, self._duty.kill_patience)
        log.error("stuck", message=self._stuck)
        write_termination_message("\n".join(filter(None, (self._failure, self._stuck))))
        while stuck and not self._stop.is_set():
            await self._wait()
            stuck = await self._supervisor.end(patience=0.0)
        return False

    async def _wait(self) -> None:
        """Waits until the next poll is due, the child has ended or the agent is asked to stop."""
        waiters = [asyncio.create_task(event.wait()) for event in (self._stop, self._supervisor.exited)]
        await asyncio.wait(waiters, timeout=_POLL_INTERVAL, return_when=asyncio.FIRST_COMPLETED)
        for waiter in waiters:
            waiter.cancel()

    async def _sweep(self) -> None:
        while self._duty.shared_memory is not None:
            await asyncio.sleep(_SWEEP_INTERVAL)
            await asyncio.to_thread(sweep, self._duty.shared_memory)

    async def _missing(self) -> str | None:
        if self._stop.is_set():
            return "draining"
        if self._state.phase is Phase.WAITING:
            return "waiting for the Ray head" if self._state.failures == 0 else "restarting after a failure"
        return await self._duty.missing()


def termination_message(role: str, code: int | None, lines: Sequence[str], failures: int = 1) -> str:
    """Says what ended, how, and why. Pure.

    A child that knows why writes that last, as `ROLE failed: CAUSE`. Of a Python program that an error ended (it exits with 1) the last
    traceback in `lines`, the end of its standard error, says why. Of others the last line does.
    """
    how = "is gone" if code is None else f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
    last = next((line for line in reversed(lines) if line), "it wrote nothing to standard error")
    named = last.startswith(f"{role} failed: ") or code != 1
    why = last if named else cause("\n".join(lines)) or last
    often = f" (failure {failures} in a row)" if failures > 1 else ""
    return f"{role} {how}{often}: {why}"[:_CHARACTERS]


def stuck_message(role: str, processes: Sequence[str], seconds: float) -> str:
    """Says what can't be ended. Pure."""
    what = f"{role} can't be ended: {seconds:g} s after SIGKILL these processes still wait for storage or a device"
    return f"{what}: {', '.join(processes)}"[:_CHARACTERS]


def write_termination_message(message: str, path: Path = TERMINATION_LOG) -> None:
    """Writes it where the kubelet looks, if this is a pod."""
    if path.exists():
        path.write_text(message)
