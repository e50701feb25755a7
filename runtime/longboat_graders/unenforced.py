"""Lists the limits of programs in a sandbox that this node can't enforce."""

from __future__ import annotations

import os
from functools import cache

from longboat_graders import landlock
from longboat_graders.seccomp import can_ask

# What is missing before each version of Landlock.
_LANDLOCK = {
    1: "without Landlock (Linux 5.13, switched on) programs read what their user can, files of other samples included, write wherever "
    "the container lets them, and pages that their processes share count for each of them",
    3: "without Landlock 3 (Linux 6.2) programs may truncate files that they can open",
    4: "without Landlock 4 (Linux 6.7) seccomp alone keeps programs from the network",
    landlock.SCOPES_SIGNALS: "without Landlock 6 (Linux 6.12) programs can't signal their own child processes one by one, since they "
    "couldn't be kept from those of other samples, and a reward function's grade may signal processes of other grades",
}
_CHILDREN = (
    "without /proc/PID/task/TID/children (CONFIG_PROC_CHILDREN) a program's processes aren't counted: the memory and the CPU time of each are "
    "limited, not those of all together, and removed files that are open don't count"
)
_ASKING = (
    "without seccomp's notifications (Linux 5.5) a grade or program may start many processes before it is ended for it"
)


@cache
def unenforced() -> list[str]:
    """Lists for people what the graders can't enforce here, one line each; empty where nothing is missing."""
    return missing(
        landlock.version(), asks=can_ask(), tells_children=os.path.exists(f"/proc/self/task/{os.getpid()}/children")
    )


def missing(abi: int, *, asks: bool, tells_children: bool) -> list[str]:
    """Lists what is missing with version `abi` of Landlock (0: none) and without the other two, one line each. Pure.

    `asks`: the kernel can ask before it starts a process. `tells_children`: it tells the children of a process.
    """
    lines = [line for version, line in _LANDLOCK.items() if abi < version]
    return [*lines, *([] if tells_children else [_CHILDREN]), *([] if asks else [_ASKING])]
