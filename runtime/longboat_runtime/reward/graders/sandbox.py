"""How a grade's process confines itself, and within which limits.

As much as possible is done by the zygote before it forks: what the child computes itself costs copies of the zygote's pages.
"""

from __future__ import annotations

import math
import os
import resource
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from longboat_runtime import prctl
from longboat_runtime.reward.graders import landlock
from longboat_runtime.reward.graders.seccomp import Filter

# rlimit, soft bound, hard bound.
Bound = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one grade's processes, as rlimits; sizes in bytes. Each process has its own, `processes` counts for the uid."""

    cpu_seconds: int
    # Address space beyond what the zygote has mapped.
    memory: int = 4 * 2**30
    file_size: int = 64 * 2**20
    # The kernel counts all processes and threads of a uid on the node, graders of other pods among them.
    processes: int = 512
    open_files: int = 256


def limits_for(timeout: float) -> Limits:
    """The limits for a wall-clock timeout in seconds, which the CPU limit only backs up: so it lies above it."""
    return Limits(cpu_seconds=math.ceil(timeout) + 1)


class Sandbox:
    """Bounds one grade: rlimits, Landlock, seccomp. Made in the zygote, entered in the forked child, closed in the zygote.

    `directory` is the only place the grade may write to, and its working directory. Raises OSError if the kernel refuses anything:
    then nothing may be graded.
    """

    def __init__(self, directory: Path, limits: Limits, calls: Filter) -> None:
        self._directory, self._calls = str(directory), calls
        self._bounds = _bounds(limits)
        self._rules = landlock.ruleset(directory)

    def enter(self) -> None:
        """Locks this process and all it will start in, for good. It leads its own process group."""
        os.chdir(self._directory)
        os.umask(0o077)
        os.environ["TMPDIR"] = os.environ["HOME"] = self._directory
        tempfile.tempdir = None
        for kind, soft, hard in self._bounds:
            resource.setrlimit(kind, (soft, hard))
        prctl.gain_no_privileges()
        landlock.restrict(self._rules)
        self._calls.install(os.getpgrp())

    def close(self) -> None:
        """Gives the file descriptor back."""
        if self._rules is not None:
            os.close(self._rules)


def _bounds(limits: Limits) -> Sequence[Bound]:
    """The soft CPU limit sends SIGXCPU, which says what happened; the hard one kills a process that ignores it."""
    wanted = (
        (resource.RLIMIT_CPU, limits.cpu_seconds, limits.cpu_seconds + 1),
        (resource.RLIMIT_AS, *(_mapped_bytes() + limits.memory,) * 2),
        (resource.RLIMIT_FSIZE, *(limits.file_size,) * 2),
        (resource.RLIMIT_NPROC, *(limits.processes,) * 2),
        (resource.RLIMIT_NOFILE, *(limits.open_files,) * 2),
        (resource.RLIMIT_CORE, 0, 0),
    )
    return [(kind, *_within(resource.getrlimit(kind)[1], soft, hard)) for kind, soft, hard in wanted]


def _within(allowed: int, soft: int, hard: int) -> tuple[int, int]:
    return (soft, hard) if allowed == resource.RLIM_INFINITY else (min(soft, allowed), min(hard, allowed))


def _mapped_bytes() -> int:
    """Address space of this process, and so of its forks."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
