"""Reads from /proc what the processes below this one hold, and ends all of them."""

from __future__ import annotations

import os
import signal
import stat
from contextlib import suppress
from dataclasses import dataclass, field

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    from collections.abc import Collection

_PAGE, _TICKS = os.sysconf("SC_PAGESIZE"), os.sysconf("SC_CLK_TCK")
# Of /proc/PID/stat, counted from the third value: utime, stime, cutime, cstime; vsize; rss.
_CPU_TIMES, _MAPPED, _RESIDENT = slice(11, 15), 20, 21
# Page tables have an entry of 8 bytes for each page of 4 KiB at most, and those of higher levels are few.
_BYTES_PER_TABLE_BYTE = 512
_BLOCK = 512
# What a container's cgroup (version 2) tells of its memory.
_MEMORY_EVENTS = "/sys/fs/cgroup/memory.events"
# What a socket may have sent that nobody has read: the kernel takes no more once it holds this much, and half as much again at once. It
# is the kernel's default, and programs can't ask for more.
_SOCKET_BYTES = 3 * 212_992 // 2
# More entries below a directory than this count as too much, whatever they hold.
MOST_ENTRIES = 10_000


def children(pid: int | str = "self") -> list[int]:
    """Lists the pids of the children of all threads of a process, adopted ones included; none if it is gone."""
    return _looked_at(pid)[1]


@dataclass(slots=True)
class Tree:
    """Processes below this one: how many threads they have together, the CPU seconds that they have used, and the bytes that they hold.

    CPU seconds include those of processes that were waited for. Pages that several hold count for each. `mapped` are the bytes of their
    address spaces.
    """

    pids: list[int] = field(default_factory=list)
    threads: int = 0
    cpu_seconds: float = 0.0
    resident: int = 0
    mapped: int = 0


def descendants(most: int | None = None) -> Tree:
    """Finds the processes below this one, zombies included: all, or until there are more than `most` threads.

    Processes that start or end meanwhile may be missing.
    """
    tree, pending = Tree(), children()
    while pending and (most is None or tree.threads <= most):
        pid = pending.pop()
        threads, below = _looked_at(pid)
        if not threads or pid in tree.pids:
            continue
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                values = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        tree.pids.append(pid)
        tree.threads += threads
        tree.cpu_seconds += sum(map(int, values[_CPU_TIMES])) / _TICKS
        tree.resident += int(values[_RESIDENT]) * _PAGE
        tree.mapped += int(values[_MAPPED])
        pending += below
    return tree


def parent(pid: int) -> int:
    """Returns the pid of a process' parent; 0 if it has none that can be seen here."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def threads_of_group(leader: int, most: int) -> int:
    """Counts the threads of a child of this process, of all below it and of its group's orphans; no further than `most`.

    Reaps orphans that have ended.
    """
    orphans = [
        pid for pid in children() if pid != leader and _group(pid) == leader and not os.waitpid(pid, os.WNOHANG)[0]
    ]
    count, pending = 0, [leader, *orphans]
    while pending and count <= most:
        threads, below = _looked_at(pending.pop())
        count += threads
        pending += below
    return count


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def _looked_at(pid: int | str) -> tuple[int, list[int]]:
    """Returns how many threads a process has, and the pids of the children of all of them; 0 and none if it is gone."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return 0, []
    below: list[int] = []
    for thread in threads:
        with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
            below += map(int, file.read().split())
    return len(threads), below


def memory(tree: Tree, limit: int) -> int:
    """Returns the bytes that these processes hold together. If that may be more than `limit`, each counts only its share of shared pages.

    The kernel tells how pages are shared only of processes that may be looked into; of others all but files and shared memory counts.
    What the kernel holds for them counts if it might exceed the limit. That is page tables, which a process gets by merely reading what
    it has mapped, and sockets, as if all were full, since nothing says how much is in them.
    """
    of_kernel = _page_tables(tree, limit - tree.resident)
    of_kernel += _buffers(tree.pids, limit - tree.resident - of_kernel)
    if tree.resident + of_kernel <= limit:
        return tree.resident + of_kernel
    total = of_kernel
    for pid in tree.pids:
        proportional = _proportional_bytes(pid)
        total += _private_bytes(pid) if proportional is None else proportional
    return total


def _private_bytes(pid: int) -> int:
    """Returns the bytes in memory that aren't of files or shared memory; 0 if the process is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared, *_ = map(int, file.read().split())
    except OSError:
        return 0
    return (resident - shared) * _PAGE


def _proportional_bytes(pid: int) -> int | None:
    """Reads a process' proportional set size in bytes; None if it may not be looked into, or is gone."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            line = next(line for line in file if line.startswith(b"Pss:"))
    except (OSError, StopIteration):
        return None
    return int(line.split()[1]) * 1024


def _page_tables(tree: Tree, room: int) -> int:
    """Returns the bytes of these processes' page tables; 0 if tables of all that they have mapped wouldn't take more than `room`."""
    if tree.mapped // _BYTES_PER_TABLE_BYTE <= room:
        return 0
    total = 0
    for pid in tree.pids:
        with suppress(OSError, StopIteration), open(f"/proc/{pid}/status", "rb") as file:
            total += int(next(line for line in file if line.startswith(b"VmPTE:")).split()[1]) * 1024
    return total


def _buffers(pids: Collection[int], room: int) -> int:
    """Returns the bytes that these processes' sockets may hold, each counted once.

    0 if all their open files, were they sockets, could hold no more than `room`.
    """
    opened = [f"/proc/{pid}/fd/{number}" for pid in pids for number in _listed(f"/proc/{pid}/fd")]
    if len(opened) * _SOCKET_BYTES <= room:
        return 0
    sockets: set[str] = set()
    for path in opened:
        with suppress(OSError):
            sockets.add(os.readlink(path))
    return sum(name.startswith("socket:") for name in sockets) * _SOCKET_BYTES


def _listed(directory: str) -> list[str]:
    with suppress(OSError):
        return os.listdir(directory)
    return []


def oom_kills(path: str = _MEMORY_EVENTS) -> int | None:
    """Counts the processes of this container that the kernel has ended for want of memory so far; None where that can't be read."""
    try:
        with open(path, "rb") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(b"oom_kill "))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def was_short(before: int | None, after: int | None) -> bool:
    """Whether the kernel has ended a process meanwhile, given `oom_kills` before and after: not if that isn't known. Pure."""
    return before is not None and after is not None and after > before


def written(directory: str, pids: Collection[int], initial_files: Collection[tuple[int, int]]) -> int:
    """Counts the bytes on the disk below `directory`, and in files without a name that these processes hold open.

    `initial_files` are those (device and inode) that they were started with, which don't count. With too many files it is 2**63.
    """
    total, entries, pending = 0, 0, [directory]
    while pending and entries <= MOST_ENTRIES:
        try:
            with os.scandir(pending.pop()) as scanned:
                for entry in scanned:
                    entries += 1
                    with suppress(OSError):
                        total += entry.stat(follow_symlinks=False).st_blocks * _BLOCK
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(entry.path)
        except OSError:
            continue
    if entries > MOST_ENTRIES:
        return 2**63
    removed: dict[tuple[int, int], int] = {}
    for pid in pids:
        with suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    status = os.stat(f"/proc/{pid}/fd/{number}")
                    if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
                        removed[status.st_dev, status.st_ino] = status.st_blocks * _BLOCK
    return total + sum(size for file, size in removed.items() if file not in initial_files)


def lead_group(pid: int) -> None:
    """Makes a fork of this process lead a group of its own: unless it has ended, the group is there when this returns.

    One that has ended is a zombie and keeps its number; one that executes another program has made itself the leader before.
    """
    try:
        os.setpgid(pid, pid)
    except (ProcessLookupError, PermissionError):
        return


def end_group(leader: int) -> tuple[float, int | None]:
    """Kills a group whose leader is a child of this process, and waits for all children of this process, adopted ones included.

    Returns their CPU seconds, and how the leader ended (as waitpid gives it): None if it wasn't there. Nothing of the group is left,
    whatever it forks meanwhile: a group is killed at once, and none may leave it. What has left it nevertheless is killed too.
    """
    cpu, status = 0.0, None
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    while True:
        try:
            pid, ended, used = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return cpu, status
        if pid == 0:
            for child in descendants().pids:
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            pid, ended, used = os.wait4(-1, 0)
        cpu += used.ru_utime + used.ru_stime
        if pid == leader:
            status = ended


def end_orphan(pid: int) -> None:
    """Kills a process that this one has adopted, with all its group at once, and reaps it if it has ended by then.

    One that is still in this process' own group is killed alone.
    """
    with suppress(ProcessLookupError):
        group = os.getpgid(pid)
        if group == os.getpgrp():
            os.kill(pid, signal.SIGKILL)
        else:
            os.killpg(group, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
