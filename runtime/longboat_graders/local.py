"""Runs the graders of a run without Kubernetes, where no container keeps graded code from the machine and from its user's processes.

The process that is started, the guard, listens, makes the directory for grades, and forks the graders' server. It sees to the end of
whatever the server leaves behind, removes that directory, and runs no code of anybody else's. As far as the kernel allows it,

* the server is the first process of a PID namespace: when it ends, the kernel ends all others. For an ordinary user that takes a user
  namespace, in which the limit of processes counts the graders' processes only;
* root's graders are another user. Of root's rights they keep reading (CAP_DAC_READ_SEARCH), if root has it: rewards, and Python itself, may
  lie in root's home.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import random
import select
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from longboat_graders import prctl, socket_server
from longboat_graders.leftovers import remove_tree
from longboat_graders.process_tree import children, end_orphan
from longboat_graders.socket_server import SocketServer

_LIBRARY = ctypes.CDLL(None, use_errno=True)
# linux/sched.h, linux/mount.h, linux/capability.h.
_NEW_MOUNTS, _NEW_USERS, _NEW_PIDS = 0x00020000, 0x10000000, 0x20000000
_NO_SUID_DEV_EXEC, _PRIVATE_BELOW = 0x2 | 0x4 | 0x8, 0x4000 | 0x40000
_READ_SEARCH, _KILL, _SET_GID, _SET_UID, _SYS_ADMIN = 2, 5, 6, 7, 21
_CAPABILITY_VERSION = 0x20080522
# No user of a distribution's or of a person's: systemd takes users of services that need none of their own from there.
_UIDS = range(61_184, 65_520)
_STOPS = (signal.SIGTERM, signal.SIGINT)
_REAP_INTERVAL = 0.02


@dataclass(frozen=True, slots=True)
class Boundary:
    """Says what keeps graders apart: `namespaces` to make (flags of unshare, 0 for none), and the `user` to become, if any."""

    namespaces: int
    user: int | None

    def missing(self, uid: int, *, other_user: bool = True) -> list[str]:
        """Lists for people what isn't enforced if `uid` starts the graders, one line each, with the cure. Pure.

        `other_user` says whether root's should be another user.
        """
        lines = []
        if uid == 0 and other_user and self.user is None:
            lines.append(
                "graders run as root: graded code that gets past seccomp and Landlock has root's rights; run as an ordinary user, or let "
                "root change its user (CAP_SETUID, CAP_SETGID, CAP_KILL) and others read Python and its packages"
            )
        if uid != 0 and not self.namespaces & _NEW_USERS:
            lines.append(
                "without user namespaces the limit of the graders' processes counts all processes of this user: allow them "
                "(sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)"
            )
        if not self.namespaces:
            lines.append(
                "without a PID namespace what graders have started may outlive them if they are killed with the process that started them: "
                "allow user namespaces, or run as root with CAP_SYS_ADMIN"
            )
        return lines


def serve(path: Path, make: Callable[[Path, list[str]], SocketServer[Any]], parent: int, *, other_user: bool) -> int:
    """Runs a server until SIGTERM or SIGINT, the end of the process `parent`, or a failure; returns the exit status.

    `make` makes it, given its directory and what isn't enforced here. Root's becomes another user if `other_user` says so. To be called
    in a process with one thread.
    """
    prctl.adopt_orphans()
    boundary = choose() if other_user else replace(choose(), user=None)
    listener = socket_server.listen(path)
    scratch, owned = socket_server.scratch_directory(tempfile.gettempdir())
    if boundary.user is not None:
        os.chown(scratch, boundary.user, boundary.user)
    # Until the server listens to them: the kernel drops signals that the first process of a namespace doesn't handle.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    reader, writer = os.pipe()
    missing = boundary.missing(os.getuid(), other_user=other_user)
    served = partial(make, scratch, missing)
    _unshare(boundary.namespaces)
    # Behind what the kernel takes for a change of privileges, which revokes it.
    prctl.die_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        signal.raise_signal(signal.SIGTERM)
    pid = os.fork()
    if pid == 0:
        _run(lambda: _serve_confined(boundary, reader, writer, listener, served))
    os.close(reader)
    listener.close()
    for number in _STOPS:
        signal.signal(number, partial(_hand_on, pid))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
    _, status = os.waitpid(pid, 0)
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)
    if not boundary.namespaces:
        _end_rest(boundary.user)
    remove_tree(str(scratch))
    os.close(owned)
    return os.waitstatus_to_exitcode(status)


def _hand_on(pid: int, number: int, _: object) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def choose() -> Boundary:
    """Finds out, in forks, what the kernel allows."""
    root, capabilities, user = os.geteuid() == 0, _capabilities(), None
    if root and all(capabilities >> needed & 1 for needed in (_KILL, _SET_GID, _SET_UID)):
        drawn = _free_user()
        user = drawn if _works(partial(_starts_as, drawn)) else None
    if capabilities >> _SYS_ADMIN & 1:
        namespaces = _NEW_PIDS | _NEW_MOUNTS
    else:
        namespaces = 0 if root else _NEW_USERS | _NEW_PIDS | _NEW_MOUNTS
    return Boundary(namespaces if namespaces and _works(partial(_has_proc, namespaces)) else 0, user)


def _serve_confined(
    boundary: Boundary,
    reader: int,
    writer: int,
    listener: socket.socket,
    make: Callable[[], SocketServer[Any]],
) -> None:
    """Confines this process, a fork of the guard's, and serves there."""
    os.close(writer)
    if boundary.namespaces:
        _mount_proc()
    if boundary.user is not None:
        _become(boundary.user)
    elif boundary.namespaces & _NEW_USERS:
        _keep_capabilities(0)
    prctl.die_with_parent()
    if select.select([reader], [], [], 0)[0]:
        return  # the guard has ended already
    socket_server.run(make, listener)


def _run(call: Callable[[], None]) -> None:
    """Does it in this process, a fork, and ends the process."""
    code = 1
    try:
        call()
        code = 0
    except BaseException:  # noqa: BLE001 - nobody else would say it
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
        finally:
            os._exit(code)


def _works(call: Callable[[], None]) -> bool:
    """Tries it in a fork; returns whether it raised nothing."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            call()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def _has_proc(namespaces: int) -> None:
    _unshare(namespaces)
    if not _works(_mount_proc):
        raise PermissionError("no /proc can be mounted in a namespace")


def _unshare(namespaces: int) -> None:
    """Makes namespaces; this process' children are in the new PID namespace. In a user namespace its user and group stay what they are."""
    if not namespaces:
        return
    uid, gid = os.getuid(), os.getgid()
    _checked(_LIBRARY.unshare(namespaces), "unshare")
    if namespaces & _NEW_USERS:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _mount_proc() -> None:
    """Shows in /proc the processes of this PID namespace, to this mount namespace alone."""
    _checked(_LIBRARY.mount(None, b"/", None, _PRIVATE_BELOW, None), "mount")
    _checked(_LIBRARY.mount(b"proc", b"/proc", b"proc", _NO_SUID_DEV_EXEC, None), "mount")


def _become(user: int) -> None:
    """Becomes another user, who keeps reading what this one may read, if this one has that capability, and no other right."""
    reading = _capabilities() & 1 << _READ_SEARCH
    os.setgroups([])
    prctl.keep_capabilities()
    _set_user(user)
    _keep_capabilities(reading)
    if reading:
        prctl.raise_ambient(_READ_SEARCH)


def _set_user(user: int) -> None:
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _starts_as(user: int) -> None:
    """Becomes the user; raises OSError if it couldn't start Python, and import from where this process does."""
    needed = [sys.executable, *filter(os.path.isdir, sys.path)]
    _become(user)
    for path in needed:
        if not os.access(path, os.R_OK | os.X_OK, effective_ids=True):
            raise PermissionError(path)


def _keep_capabilities(bits: int) -> None:
    """Gives up all capabilities but these bits."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    low, high = bits & 0xFFFFFFFF, bits >> 32
    _checked(_LIBRARY.capset(header, struct.pack("=6I", low, low, low, high, high, high)), "capset")


def _capabilities() -> int:
    """Returns this process' effective capabilities as bits."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))


def _free_user() -> int:
    """Draws a user id that nobody has and no process runs as."""
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                taken.add(os.stat(f"/proc/{name}").st_uid)
    return random.choice([uid for uid in _UIDS if uid not in taken])


def _end_rest(user: int | None) -> None:
    """Ends and reaps what the server has left: all processes of its user at once, else by groups, which none can leave."""
    if user is not None:
        _works(partial(_kill_all_of, user))
    while pids := children():
        for pid in pids:
            end_orphan(pid)
        time.sleep(_REAP_INTERVAL)


def _kill_all_of(user: int) -> None:
    _set_user(user)
    with suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)


def _checked(result: int, call: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f"{call}: {os.strerror(ctypes.get_errno())}")
