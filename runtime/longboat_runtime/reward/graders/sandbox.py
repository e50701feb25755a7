"""How a grade's process locks itself in. Called once, in the forked child, before anything of the response is looked at."""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Sequence
from pathlib import Path

from longboat_runtime import prctl
from longboat_runtime.reward.graders import landlock, seccomp
from longboat_runtime.reward.graders.limits import Limits


def _mapped_bytes() -> int:
    """Address space of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def enter(directory: Path, limits: Limits, protected: Sequence[int]) -> None:
    """Bounds this process and all it will start: rlimits, Landlock, seccomp.

    `directory` is the only place it may write to, and its working directory. `protected` are processes it may not signal. The
    caller leads its own process group. Raises OSError if the kernel refuses anything; then nothing may be graded.
    """
    os.chdir(directory)
    os.umask(0o077)
    os.environ.update(TMPDIR=str(directory), HOME=str(directory))
    tempfile.tempdir = None
    # The soft CPU limit sends SIGXCPU, which says what happened; the hard one kills whoever ignores it.
    bounds = {
        resource.RLIMIT_CPU: limits.cpu_seconds + 1,
        resource.RLIMIT_AS: _mapped_bytes() + limits.memory,
        resource.RLIMIT_FSIZE: limits.file_size,
        resource.RLIMIT_NPROC: limits.processes,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_CORE: 0,
    }
    for kind, bound in bounds.items():
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(
            kind, (bound, bound) if hard == resource.RLIM_INFINITY else (min(bound, hard), min(bound, hard))
        )
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_seconds, limits.cpu_seconds + 1))
    prctl.gain_no_privileges()
    landlock.restrict(directory)
    seccomp.install(os.getpgrp(), protected)
