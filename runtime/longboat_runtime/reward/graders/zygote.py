"""A process that has imported one reward function and forks children that grade.

Started by `zygote_process` as `python -m longboat_runtime.reward.graders.zygote FD`, FD being its end of a pair of sockets that keep
messages apart; the function is named on its standard input. Samples go past it, from the server to its children, so that no child finds one
in the memory that it inherits. It is single-threaded, so forking is safe as long as the reward function's module starts no threads when it
is imported.

Commands are {fork, stays, watched}, with a file descriptor for the socket of each child, and {kill}; children have numbers of the server's.
Answers come in lists: {forked, pid}, {failed, error} and {ended, status, cpu, output}, status being as `waitpid` gives it, and cpu the
seconds that it has used in all, with those of processes that it had waited for.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress

from longboat_crds.reward_kinds import RewardKind
from longboat_runtime import prctl
from longboat_runtime.problems import SpecProblem
from longboat_runtime.reward.adapters import load_scorer
from longboat_runtime.reward.function import RewardFunction
from longboat_runtime.reward.graders.child import rehearse, run_child
from longboat_runtime.reward.graders.leftovers import remove_tree
from longboat_runtime.reward.graders.process_tree import children
from longboat_runtime.reward.graders.sandbox import Limits, Sandbox, limit_all
from longboat_runtime.reward.graders.seccomp import Filter, own_program, shared_program
from longboat_runtime.reward.graders.watch import Origins

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from longboat_runtime.reward.adapters import Scorer
    from longboat_runtime.reward.graders.case_runner import CaseRunner

# How often to check whether killed processes have ended, in seconds.
_REAP_INTERVAL = 0.02
_OUTPUT_BYTES = 512
_MESSAGE_BYTES = 64 * 1024
# The kernel sends no more with one message.
_SOCKETS = 253
# How many packages a zygote names, and of how many modules each at least.
_LARGE_PACKAGES, _LARGE_MODULES = 6, 20
_FORKS_MEASURED = 11


class Child:
    """A forked child. The process group's number is its pid."""

    __slots__ = ("number", "pid", "pidfd", "sandbox")

    def __init__(self, number: int, pid: int, sandbox: Sandbox) -> None:
        self.number, self.pid, self.sandbox = number, pid, sandbox
        self.pidfd = -1

    def kill(self) -> None:
        """Ends every process of its group at once, what is being forked included. A case runner's programs lead groups of their own."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


class Zygote:
    """The loop of one zygote, which confines its process. `scratch` is its directory, in which children have one each."""

    def __init__(
        self,
        control: socket.socket,
        score: Scorer | CaseRunner,
        origins: Origins,
        scratch: str,
        protected: Sequence[int],
    ) -> None:
        self._control, self._score, self._origins, self._scratch = control, score, origins, scratch
        self._protected = protected
        machine = os.uname().machine
        self._filters = {stays: Filter(own_program(protected, machine, alone=stays)) for stays in (False, True)}
        limit_all(Limits() if callable(score) else score.limits)
        Filter(shared_program(machine)).install()
        # By number, and by pidfd.
        self._children: dict[int, Child] = {}
        self._by_pidfd: dict[int, Child] = {}
        self._ending: list[Child] = []
        # Sandboxes without a child, to be used again: making one costs as much as a fork.
        self._sandboxes: list[Sandbox] = []
        self._unsaid: list[Mapping[str, Any]] = []
        self._poll = select.epoll()
        self._poll.register(control.fileno(), select.EPOLLIN)

    def run(self) -> None:
        """Follows commands until the server closes its end; then kills its children."""
        try:
            while self._turn():
                continue
        except ConnectionError:
            pass  # The server closed its end while messages were under way.
        for child in self._children.values():
            child.kill()

    def _turn(self) -> bool:
        """Waits for something to do and does it. Returns False, or raises ConnectionError, once the server has closed its end."""
        for fd, _ in self._poll.poll(_REAP_INTERVAL if self._ending else None):
            if fd != self._control.fileno():
                self._finish(self._by_pidfd[fd])
                continue
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
                pid = self._fork(number, server, command["stays"], command["watched"])
            except OSError as error:
                self._say({"failed": number, "error": str(error)})
            else:
                self._say({"forked": number, "pid": pid})
        for server in sockets:
            os.close(server)

    def _fork(self, number: int, server: int, stays: bool, watched: bool) -> int:
        sandbox = self._sandboxes.pop() if self._sandboxes else Sandbox(self._new_directory(), Limits())
        calls = self._filters[stays]
        try:
            sandbox.prepare()
            pid = os.fork()
        except OSError:
            self._sandboxes.append(sandbox)
            raise
        if pid == 0:
            run_child(
                self._score,
                sandbox,
                calls,
                self._origins,
                self._protected,
                server=server,
                stays=stays,
                watched=watched,
            )
        _lead_group(pid)
        child = Child(number, pid, sandbox)
        try:
            self._follow_end(child)
        except OSError:
            # Its end would go unnoticed.
            child.kill()
            os.waitpid(pid, 0)
            self._ending.append(child)
            raise
        self._children[number] = self._by_pidfd[child.pidfd] = child
        return pid

    def _follow_end(self, child: Child) -> None:
        child.pidfd = os.pidfd_open(child.pid)
        try:
            self._poll.register(child.pidfd, select.EPOLLIN)
        except OSError:
            os.close(child.pidfd)
            raise

    def _new_directory(self) -> str:
        """Names a directory that nobody can guess: Landlock doesn't keep a grade from changing the rights of another's."""
        return f"{self._scratch}/{os.urandom(16).hex()}"

    def _finish(self, child: Child) -> None:
        """Ends the group of a leader that has ended, then reaps and reports that. Until then its number is taken: it is the right group."""
        child.kill()
        _, status, used = os.wait4(child.pid, 0)
        cpu, output = used.ru_utime + used.ru_stime, child.sandbox.printed(_OUTPUT_BYTES)
        self._poll.unregister(child.pidfd)
        del self._children[child.number], self._by_pidfd[child.pidfd]
        self._say({"ended": child.number, "status": status, "cpu": cpu, "output": output})
        os.close(child.pidfd)
        self._ending.append(child)

    def _say(self, message: Mapping[str, Any]) -> None:
        self._unsaid.append(message)

    def _reap_group(self, child: Child) -> bool:
        """Reaps what the leader left in its group, orphans that the kernel has handed to us; True when all have ended."""
        try:
            while os.waitpid(-child.pid, os.WNOHANG)[0] != 0:
                continue
        except ChildProcessError:
            if not callable(self._score) and not self._programs_ended():
                return False
            if child.sandbox.clean():
                self._sandboxes.append(child.sandbox)
            else:
                child.sandbox.close()
            return True
        return False

    def _programs_ended(self) -> bool:
        """Ends programs that lost their launcher, by process groups, which none can leave. Returns whether there are none."""
        leaders = {child.pid for child in (*self._children.values(), *self._ending)}
        ended = True
        for pid in children("self"):
            group = os.getpgid(pid)
            if group not in leaders:
                os.killpg(group, signal.SIGKILL)
                ended &= os.waitpid(pid, os.WNOHANG)[0] != 0
        return ended


def sweep(scratch: str) -> None:
    """Removes the directories that children of a zygote before this one have left: it died, and they with it.

    What those have started may end a moment later (see `server.reap_orphans`); a directory in which it still writes is left to the next.
    """
    for name in os.listdir(scratch):
        with suppress(OSError):
            remove_tree(f"{scratch}/{name}")


def _lead_group(pid: int) -> None:
    """Makes the child lead a process group of its own before the server hears of it, and so before anything is asked of it."""
    try:
        os.setpgid(pid, pid)
    except ProcessLookupError:
        # It has ended already; the zombie keeps the number.
        return


def footprint() -> dict[str, Any]:
    """Measures what every fork of this process holds, and what a fork costs.

    `modules` are the largest packages and how many modules each has (the standard library and our own aside). `resident` is the memory in
    bytes. `fork` is the CPU seconds of a fork whose child does nothing, until it has been reaped: the median of some.
    """
    packages: dict[str, int] = {}
    for name in list(sys.modules):
        package = name.partition(".")[0]
        if package not in sys.stdlib_module_names and package not in ("longboat_runtime", "longboat_crds", "__main__"):
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


def main(fd: int) -> None:
    """Reads the request to load a function, answers, and forks."""
    os.dup2(2, 1)
    prctl.die_with_parent()
    prctl.hide_memory()
    prctl.adopt_orphans()
    # Inherited by all children.
    prctl.gain_no_privileges()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.umask(0o077)
    control = socket.socket(fileno=fd)
    with open(0, "rb") as file:
        request = json.load(file)
    os.open(os.devnull, os.O_RDONLY)  # as standard input
    origins = Origins({os.path.dirname(path) for path in (_package("longboat_runtime"), _package("longboat_crds"))})
    function = RewardFunction.from_json(request["function"])
    score: Scorer | CaseRunner
    try:
        if function.kind is RewardKind.SANDBOX:
            # Imported here, since other graders needn't hold it in memory.
            from longboat_runtime.reward.graders.case_runner import CaseRunner

            score = CaseRunner(function, request["field"], request["config_maps"])
        else:
            score = load_scorer(function, request["field"], request["config_maps"])
    except SpecProblem as problem:
        control.sendall(json.dumps([{"problem": list(problem.args)}]).encode())
        return
    if "numpy" in sys.modules:
        # It imports this at first use, which would be in a grade, with random numbers that nobody seeds.
        import numpy.random  # noqa: F401
    rehearse()
    sweep(request["scratch"])
    gc.collect()
    gc.freeze()
    control.sendall(json.dumps([{"loaded": footprint()}]).encode())
    Zygote(control, score, origins, request["scratch"], [1, os.getppid(), os.getpid()]).run()


def _package(name: str) -> str:
    return str(sys.modules[name].__file__)


if __name__ == "__main__":
    main(int(sys.argv[1]))
