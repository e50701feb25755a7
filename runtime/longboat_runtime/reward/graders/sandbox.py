"""How a grader's process confines itself, and within which limits.

As much as possible is done by the zygote before it forks: what the child computes itself costs copies of the zygote's pages.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass

from longboat_runtime import prctl
from longboat_runtime.reward.graders import landlock
from longboat_runtime.reward.graders.seccomp import Filter

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    from collections.abc import Sequence

# rlimit, soft bound, hard bound.
Bound = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a grader's processes, as rlimits; sizes in bytes. Each process has its own, `processes` counts for the uid.

    CPU time isn't among them: an rlimit would add up over all grades of a process that stays. See `cpu_limit`.
    """

    # Address space beyond what the zygote has mapped.
    memory: int = 4 * 2**30
    file_size: int = 64 * 2**20
    # The kernel counts all processes and threads of a uid on the node, graders of other pods among them.
    processes: int = 512
    open_files: int = 256


def cpu_limit(timeout: float) -> int:
    """CPU seconds that one process may use for a grade, given its wall-clock timeout in seconds.

    It only backs the timeout up (several threads use it up earlier), so it lies above it.
    """
    return -int(-timeout // 1) + 1


class Sandbox:
    """Bounds one child: rlimits, Landlock, seccomp. Made in the zygote, entered in the forked child, closed in the zygote.

    `directory` is the only place the grade may write to, and its working directory. Raises OSError if the kernel refuses anything:
    then nothing may be graded.
    """

    def __init__(self, directory: str, calls: Filter, limits: Limits) -> None:
        self.directory, self._calls = directory, calls
        self._bounds = _bounds(limits)
        self._rules = landlock.ruleset(directory)

    def enter(self) -> None:
        """Locks this process and all it will start in, for good. It leads its own process group."""
        os.chdir(self.directory)
        os.umask(0o077)
        os.environ["TMPDIR"] = os.environ["HOME"] = self.directory
        for kind, soft, hard in self._bounds:
            resource.setrlimit(kind, (soft, hard))
        prctl.gain_no_privileges()
        landlock.restrict(self._rules)
        self._calls.install(os.getpgrp())

    def close(self) -> None:
        """Gives the file descriptor back."""
        if self._rules is not None:
            os.close(self._rules)


def limit_cpu(seconds: int) -> None:
    """Bounds this process and each that it will start. The soft limit sends SIGXCPU, the hard one kills what ignores it."""
    allowed = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, _within(allowed, seconds, seconds + 1))


def _bounds(limits: Limits) -> Sequence[Bound]:
    wanted = (
        (resource.RLIMIT_AS, _mapped_bytes() + limits.memory),
        (resource.RLIMIT_FSIZE, limits.file_size),
        (resource.RLIMIT_NPROC, limits.processes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_CORE, 0),
    )
    return [(kind, *_within(resource.getrlimit(kind)[1], bound, bound)) for kind, bound in wanted]


def _within(allowed: int, soft: int, hard: int) -> tuple[int, int]:
    return (soft, hard) if allowed == resource.RLIM_INFINITY else (min(soft, allowed), min(hard, allowed))


def _mapped_bytes() -> int:
    """Address space of this process, and so of its forks."""
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - pathlib would be in the memory of every grader
        return int(file.read().split()[0]) * resource.getpagesize()
