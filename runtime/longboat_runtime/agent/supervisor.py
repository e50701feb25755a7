"""The agent's one child: started, watched, drained or killed with all its descendants, everything reaped."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import structlog

from longboat_graders import prctl

log = structlog.get_logger()

_KILL_INTERVAL = 0.02
# A process that is alive this long after SIGKILL (seconds) waits in the kernel for storage or a device that doesn't answer, or is
# frozen: no signal ends it before that.
KILL_PATIENCE = 30.0
# How much of the child's last error output is kept for the termination message, and how long it is waited for, in seconds.
_TAIL_LINES, _TAIL_SECONDS = 40, 1.0


class Supervisor:
    """Runs at most one child at a time. Made inside the agent's event loop.

    `exited` is set when the child has ended; the agent or the next `start` clears it. The child's standard error goes through the
    agent, which keeps its last lines.
    """

    def __init__(self) -> None:
        self.exited = asyncio.Event()
        self.exit_code: int | None = None
        self.restarts = -1
        self._child: subprocess.Popen[bytes] | None = None
        self._tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self._forwarding: threading.Thread | None = None
        prctl.adopt_orphans()
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)

    def start(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Starts the child; the last one has ended."""
        assert self._child is None
        self.exited.clear()
        self.exit_code = None
        self.restarts += 1
        self._tail = collections.deque(maxlen=_TAIL_LINES)
        log.info("start", command=" ".join(command))
        self._child = subprocess.Popen(command, env={**os.environ, **(environment or {})}, stderr=subprocess.PIPE)
        assert self._child.stderr is not None
        self._forwarding = threading.Thread(target=self._forward, args=(self._child.stderr, self._tail), daemon=True)
        self._forwarding.start()

    @property
    def running(self) -> bool:
        """Whether a child has been started and not ended."""
        return self._child is not None

    @property
    def last_lines(self) -> list[str]:
        """The last lines that were read of the child's standard error."""
        return list(self._tail)

    async def read_out(self) -> None:
        """Waits until all that a child, which has ended, wrote has been read.

        At most _TAIL_SECONDS: descendants that live on may keep the stream open.
        """
        if self._forwarding is not None:
            await asyncio.to_thread(self._forwarding.join, _TAIL_SECONDS)

    async def end(self, patience: float = KILL_PATIENCE) -> set[int]:
        """Kills the child and all its descendants; returns when none is left, or those that are left after `patience` seconds."""
        deadline = asyncio.get_running_loop().time() + patience
        while remaining := kill_descendants():
            self._reap()
            if asyncio.get_running_loop().time() >= deadline:
                return remaining & descendants()
            await asyncio.sleep(_KILL_INTERVAL)
        return remaining

    async def drain(self, grace: float) -> None:
        """Asks the child to end (SIGTERM), gives it and its descendants `grace` seconds, then kills what is left."""
        if self._child is not None:
            self._child.terminate()
        deadline = asyncio.get_running_loop().time() + grace
        while descendants() and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 - /proc has no notifications
            await asyncio.sleep(_KILL_INTERVAL)
        await self.end()

    def _reap(self) -> None:
        """Reaps everything that has ended: the child, and orphans, which nobody else waits for."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0] != 0:
                pid, status = ended
                if self._child is not None and pid == self._child.pid:
                    self.exit_code = self._child.returncode = os.waitstatus_to_exitcode(status)
                    self._child = None
                    log.info("ended", code=self.exit_code)
                    self.exited.set()

    @staticmethod
    def _forward(stream: IO[bytes], tail: collections.deque[str]) -> None:
        """Runs in a thread until all writers have closed the stream."""
        for line in stream:
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()
            if text := line.decode(errors="replace").rstrip():
                tail.append(text)


def descendants() -> set[int]:
    """Returns the process ids of all descendants of this process: the child, what it started, and adopted orphans; zombies included."""
    pids: set[int] = set()
    pending = [os.getpid()]
    while pending:
        new = children(pending.pop()) - pids
        pids |= new
        pending += new
    return pids


def children(pid: int) -> set[int]:
    """Returns the ids of the children of a process; empty if it is gone. Some may be missing while a thread of it ends."""
    pids: set[int] = set()
    gone = contextlib.suppress(FileNotFoundError, ProcessLookupError)
    with gone:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with gone:
                pids |= {int(child) for child in (task / "children").read_text().split()}
    return pids


def kill_descendants() -> set[int]:
    """Kills all descendants and returns them. One that is being forked may escape: call again until there are none."""
    pids = descendants()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return pids


def description(pid: int) -> str:
    """Returns the id, name and state of a process (proc(5)), such as `17 python (state D)`; just the id if it is gone."""
    with contextlib.suppress(OSError):
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        return f"{pid} {name} (state {rest.split()[0]})"
    return str(pid)
