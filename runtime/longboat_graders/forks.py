"""The loop of a process that forks others when its server asks, and says how each ends.

Commands are {fork, ...}, with a file descriptor for the socket of each child, and {kill}; children have numbers of the server's. Answers
come in lists: {forked, pid}, {failed, error} and {ended, status, cpu, ...}. `status` is as `waitpid` gives it, `cpu` the seconds that the
child has used in all, with those of processes that it had waited for.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import socket
import sys
import time

from longboat_graders import prctl
from longboat_graders.process_tree import children, end_orphan, lead_group

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

# How often to check whether killed processes have ended, in seconds.
_REAP_INTERVAL = 0.02
_MESSAGE_BYTES = 64 * 1024
# The kernel sends no more with one message.
_SOCKETS = 253
# How many packages a zygote names, and of how many modules each at least.
_LARGE_PACKAGES, _LARGE_MODULES = 6, 20
_FORKS_MEASURED = 11


def begin(fd: int) -> tuple[socket.socket, Any]:
    """Makes this process a zygote: it ends with its parent, hides its memory, adopts orphans and gains no privileges.

    Returns its end `fd` of the control socket, and the request that came on standard input.
    """
    os.dup2(2, 1)
    prctl.die_with_parent()
    prctl.hide_memory()
    prctl.adopt_orphans()
    # Inherited by all children; without it the kernel takes no filter.
    prctl.gain_no_privileges()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.umask(0o077)
    control = socket.socket(fileno=fd)
    with open(0, "rb") as file:
        request = json.load(file)
    os.open(os.devnull, os.O_RDONLY)  # as standard input
    return control, request


class Child:
    """A forked child. The process group's number is its pid."""

    __slots__ = ("number", "pid", "pidfd")

    def __init__(self, number: int, pid: int) -> None:
        self.number, self.pid = number, pid
        self.pidfd = -1

    def kill(self) -> None:
        """Ends every process of its group at once, what is being forked included."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


class Forks:
    """Follows the commands that come on `control`. A kind of child overrides what is particular to it."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        # By number, and by pidfd.
        self._children: dict[int, Any] = {}
        self._by_pidfd: dict[int, Any] = {}
        self._ending: list[Any] = []
        self._unsaid: list[Mapping[str, Any]] = []
        self._poll = select.epoll()
        self._poll.register(control.fileno(), select.EPOLLIN)

    def run(self) -> None:
        """Follows commands until the server closes its end; then ends its children."""
        try:
            while self._turn():
                continue
        except ConnectionError:
            pass  # The server closed its end while messages were under way.
        self._end_all()

    # --- What kinds of children differ in ---

    def _forked(self, number: int, server: int, command: Mapping[str, Any]) -> Child:
        """Forks a child that is connected to the server by the descriptor `server`. Raises OSError if that can't be done."""
        raise NotImplementedError

    def _attend(self, ready: Mapping[int, int]) -> None:
        """Answers questions of children, given the events of file descriptors."""

    def _told_of(self, child: Any) -> Mapping[str, Any]:
        """Returns what the server is told of a child that has just ended, and ends to follow it."""
        return {}

    def _removed(self, child: Any) -> bool:
        """Removes what a child has left, now that its group has ended. Returns whether nothing is left of it."""
        raise NotImplementedError

    def _end_all(self) -> None:
        """Ends all children, now that this process is to end."""
        for child in self._children.values():
            child.kill()

    # --- The loop ---

    def _turn(self) -> bool:
        """Waits for something to do and does it. Returns False, or raises ConnectionError, once the server has closed its end."""
        ready = dict(self._poll.poll(_REAP_INTERVAL if self._ending else None))
        # First what only closes files: a file that is opened may get the number of one that was closed, and is ready itself.
        finished = [child for fd in ready if (child := self._by_pidfd.get(fd)) is not None]
        self._attend(ready)
        for child in finished:
            self._finish(child)
        if self._control.fileno() in ready:
            data, sockets, _, _ = socket.recv_fds(self._control, _MESSAGE_BYTES, _SOCKETS)
            if not data:
                return False
            self._follow(json.loads(data), sockets)
        if self._unsaid:
            self._control.sendall(json.dumps(self._unsaid).encode())
            self._unsaid.clear()
        if self._ending:
            self._ending = [child for child in self._ending if not self._reap_group(child)]
        return True

    def _follow(self, command: Mapping[str, Any], sockets: Sequence[int]) -> None:
        if "kill" in command:
            child = self._children.get(command["kill"])
            if child is not None:
                child.kill()
            return
        for number, server in zip(command["fork"], sockets, strict=True):
            try:
                pid = self._fork(number, server, command)
            except OSError as error:
                self._unsaid.append({"failed": number, "error": str(error)})
            else:
                self._unsaid.append({"forked": number, "pid": pid})
        for server in sockets:
            os.close(server)

    def _fork(self, number: int, server: int, command: Mapping[str, Any]) -> int:
        child = self._forked(number, server, command)
        lead_group(child.pid)
        try:
            self._follow_end(child)
        except OSError:
            # Its end would go unnoticed.
            child.kill()
            os.waitpid(child.pid, 0)
            self._ending.append(child)
            raise
        self._children[number] = self._by_pidfd[child.pidfd] = child
        return child.pid

    def _follow_end(self, child: Child) -> None:
        child.pidfd = os.pidfd_open(child.pid)
        try:
            self._poll.register(child.pidfd, select.EPOLLIN)
        except OSError:
            os.close(child.pidfd)
            raise

    def _finish(self, child: Child) -> None:
        """Ends the group of a leader that has ended, then reaps and reports that. Until then its number is taken: it is the right group."""
        child.kill()
        _, status, used = os.wait4(child.pid, 0)
        self._poll.unregister(child.pidfd)
        del self._children[child.number], self._by_pidfd[child.pidfd]
        os.close(child.pidfd)
        ended = {"ended": child.number, "status": status, "cpu": used.ru_utime + used.ru_stime}
        self._unsaid.append({**ended, **self._told_of(child)})
        self._ending.append(child)

    def _reap_group(self, child: Child) -> bool:
        """Reaps what the leader left in its group, orphans that the kernel has handed to us; True when nothing is left of it."""
        try:
            while os.waitpid(-child.pid, os.WNOHANG)[0] != 0:
                continue
        except ChildProcessError:
            return self._removed(child)
        return False

    def _end_strangers(self) -> bool:
        """Ends children of this process that no child of ours leads, by their groups. Returns whether there are none."""
        leaders = {child.pid for child in (*self._children.values(), *self._ending)}
        strangers = [pid for pid in children() if os.getpgid(pid) not in leaders]
        for pid in strangers:
            end_orphan(pid)
        return not strangers


def seed(number: int) -> None:
    """Gives the global random number generators of Python, numpy, torch (CPU) and sympy, if they are there, the sample's own state."""
    modules = sys.modules
    random.seed(number)
    if "numpy.random" in modules:
        modules["numpy.random"].seed(number % 2**32)
    if "torch.random" in modules:
        modules["torch.random"].default_generator.manual_seed(number % 2**63)
    if "sympy.core.random" in modules:
        modules["sympy.core.random"].seed(number)


def footprint() -> dict[str, Any]:
    """Measures what every fork of this process holds, and what a fork costs.

    `modules` are the largest packages and how many modules each has (the standard library and our own aside). `resident` is the memory in
    bytes. `fork` is the CPU seconds of a fork whose child does nothing, until it has been reaped: the median of some.
    """
    packages: dict[str, int] = {}
    for name in list(sys.modules):
        package = name.partition(".")[0]
        if package not in sys.stdlib_module_names and package not in ("longboat_graders", "longboat_crds", "__main__"):
            packages[package] = packages.get(package, 0) + 1
    large = sorted(packages.items(), key=lambda item: -item[1])[:_LARGE_PACKAGES]
    with open("/proc/self/statm", "rb") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    return {
        "modules": {name: count for name, count in large if count >= _LARGE_MODULES},
        "resident": resident,
        "fork": sorted(_fork_seconds() for _ in range(_FORKS_MEASURED))[_FORKS_MEASURED // 2],
    }


def _fork_seconds() -> float:
    began = time.process_time()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    _, _, used = os.wait4(pid, 0)
    return time.process_time() - began + used.ru_utime + used.ru_stime
