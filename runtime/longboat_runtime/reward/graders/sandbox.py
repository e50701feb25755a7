"""How a grader's process confines itself, and within which limits.

As much as possible is done by the zygote before it forks: what the child computes itself costs copies of the zygote's pages.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass

from longboat_runtime.reward.graders import landlock
from longboat_runtime.reward.graders.leftovers import remove_tree
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
    """Bounds one child at a time: rlimits, Landlock, seccomp. Made and prepared in the zygote, entered in the forked child.

    `directory`, which is made, is the only place the grade may write to, and its working directory. What it prints goes to the file
    `output`. Raises OSError if the kernel refuses anything: then nothing may be graded.
    """

    def __init__(self, directory: str, limits: Limits) -> None:
        self.directory = directory
        os.mkdir(directory, 0o700)
        self.output = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        self._bounds = _bounds(limits)
        self._rules = landlock.ruleset(directory)

    def prepare(self) -> None:
        """Makes this process, and so its next fork, work there."""
        os.chdir(self.directory)
        os.environ["TMPDIR"] = os.environ["HOME"] = self.directory

    def enter(self, calls: Filter) -> None:
        """Locks this process and all it will start in, for good. It leads a process group, and can't gain privileges."""
        for kind, soft, hard in self._bounds:
            resource.setrlimit(kind, (soft, hard))
        landlock.restrict(self._rules)
        calls.install(os.getpid())

    def printed(self, most: int) -> str:
        """The end of what was printed, of at most so many bytes."""
        size = os.fstat(self.output).st_size
        return os.pread(self.output, most, max(size - most, 0)).decode(errors="replace").strip()

    def clean(self) -> bool:
        """Makes it ready for another child; False if too much is left in it. No process may be left in it."""
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
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
