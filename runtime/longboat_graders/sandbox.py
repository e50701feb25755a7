"""Confines a grader's process within limits.

As much as possible is done by the zygote before it forks: what the child computes itself costs copies of the zygote's pages.
"""

from __future__ import annotations

import ctypes
import os
import resource
from dataclasses import dataclass

from longboat_graders import landlock, prctl
from longboat_graders.leftovers import remove_tree
from longboat_graders.seccomp import Filter

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

# rlimit, and its soft and hard bounds.
Bound = tuple[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a grader's processes; sizes in bytes. All but `processes`, which the zygote counts, are rlimits.

    CPU time isn't among them: an rlimit would add up over all grades of a process that stays. See `cpu_limit`.
    """

    # Address space beyond what the zygote has mapped; None where what is started from there has limits of its own.
    memory: int | None = 4 * 2**30
    file_size: int = 64 * 2**20
    # Processes and threads of one grade at once, where the kernel can ask before it starts one.
    processes: int = 128
    # The kernel counts all processes and threads of a uid on the node, graders of other pods among them.
    processes_of_user: int = 4096
    open_files: int = 256


def cpu_limit(timeout: float) -> int:
    """Returns the CPU seconds that one process may use for a grade, given its timeout in own seconds (see `times`).

    It is above the timeout, since it only backs that up; several threads may reach it earlier.
    """
    return -int(-timeout // 1) + 1


class Sandbox:
    """Bounds one child at a time: rlimits, Landlock, seccomp. Made and prepared in the zygote, entered in the forked child.

    `directory`, which is made, is the grade's working directory and, with Landlock, the only one that it may write to. What it prints goes
    to the file `output`. Raises OSError if the kernel refuses anything: then nothing may be graded.
    """

    def __init__(self, directory: str, limits: Limits) -> None:
        self.directory, self._directory, self._zygote = directory, os.fsencode(directory), os.getpid()
        os.mkdir(directory, 0o700)
        try:
            self.output = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                self._rules = landlock.ruleset(directory)
            except OSError:
                os.close(self.output)
                raise
        except OSError:
            os.rmdir(directory)
            raise
        # The zygote can't have these itself: the first counts what others have, and it holds files for all its children.
        # What is called in the child, ready to be called.
        self._calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
            prctl.dying_with_parent(),
            *(
                (resource.setrlimit, bound)
                for bound in _within_allowed({resource.RLIMIT_NPROC: limits.processes_of_user})
            ),
            *landlock.restriction(self._rules),
        ]
        [self._files] = _within_allowed({resource.RLIMIT_NOFILE: limits.open_files})

    def prepare(self) -> None:
        """Makes this process, and so its next fork, work there."""
        os.chdir(self.directory)
        for name in (b"TMPDIR", b"HOME"):
            # As assigning to `os.environ` does, which in bytes is this.
            os.putenv(name, self._directory)
            os.environ._data[name] = self._directory  # type: ignore[attr-defined]

    def enter(self, calls: Filter, ask: Callable[[int], None] | None = None) -> None:
        """Locks this process and all it will start in, for good, and has it end with its parent. It can't gain privileges.

        For a filter that asks, `ask` gets the file descriptor by which the kernel does (see `Filter.install_asking`).
        """
        for call, arguments in self._calls:
            # Functions of the C library return -1 for an error, others None.
            if call(*arguments):
                raise OSError(ctypes.get_errno(), f"the sandbox: {os.strerror(ctypes.get_errno())}")
        if os.getppid() != self._zygote:
            os._exit(1)  # it died before this process could ask to die with it
        if ask is None:
            calls.install(os.getpid())
        else:
            ask(calls.install_asking(os.getpid()))
        # Only now: the kernel lets nobody send a file while its user has more of them under way than this.
        resource.setrlimit(*self._files)

    def printed(self, most: int) -> str:
        """Reads the end of what was printed as text, at most so many bytes of it."""
        size = os.fstat(self.output).st_size
        return os.pread(self.output, most, max(size - most, 0)).decode(errors="replace").strip()

    def clean(self) -> bool:
        """Makes it ready for another child; False if it can't be, or anything is left in it. No process may be left in it."""
        try:
            os.chmod(self.directory, 0o700)
            if os.listdir(self.directory):
                return False
        except OSError:
            return False
        os.ftruncate(self.output, 0)
        os.lseek(self.output, 0, os.SEEK_SET)
        return True

    def close(self) -> None:
        """Removes it."""
        os.close(self.output)
        if self._rules is not None:
            os.close(self._rules)
        try:
            remove_tree(self.directory)
        except FileNotFoundError:
            return


def limit_all(limits: Limits) -> None:
    """Bounds this process, and so all children, in what is the same for them."""
    bounds = {resource.RLIMIT_FSIZE: limits.file_size, resource.RLIMIT_CORE: 0}
    if limits.memory is not None:
        bounds[resource.RLIMIT_AS] = _mapped_bytes() + limits.memory
    for kind, bound in _within_allowed(bounds):
        resource.setrlimit(kind, bound)


def limit_cpu(pid: int, seconds: int) -> None:
    """Bounds a process and each that it will start. The soft limit sends SIGXCPU, the hard one kills what ignores it."""
    try:
        resource.prlimit(pid, resource.RLIMIT_CPU, _within(_CPU_ALLOWED, seconds, seconds + 1))
    except ProcessLookupError:
        return


def _within_allowed(bounds: Mapping[int, int]) -> Sequence[Bound]:
    return [(kind, allowed_limits(kind, bound, bound)) for kind, bound in bounds.items()]


def allowed_limits(kind: int, soft: int, hard: int) -> tuple[int, int]:
    """Returns these limits of an rlimit, lowered to what this process may set."""
    return _within(resource.getrlimit(kind)[1], soft, hard)


def _within(allowed: int, soft: int, hard: int) -> tuple[int, int]:
    return (soft, hard) if allowed == resource.RLIM_INFINITY else (min(soft, allowed), min(hard, allowed))


_CPU_ALLOWED = resource.getrlimit(resource.RLIMIT_CPU)[1]


def _mapped_bytes() -> int:
    """Returns the size of this process' address space in bytes, and so of its forks'."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def die_first() -> None:
    """Makes the kernel end this process rather than the one that watches it if memory is short in spite of all limits."""
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def data_bytes() -> int:
    """Returns the bytes of this process' data and stack, about what RLIMIT_DATA counts: it is a fork of one that holds something."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[5]) * resource.getpagesize()
