"""What one grade may use. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass


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
    """The CPU limit only backs the wall-clock timeout (seconds) up, so it lies above it."""
    return Limits(cpu_seconds=math.ceil(timeout) + 1)
