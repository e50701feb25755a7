"""Landlock: writing only below one directory, TCP nowhere, signals to nobody outside. Constants: linux/landlock.h.

Kernels have it from 5.13 on, if it is switched on; what a kernel doesn't know is left out of the ruleset, so older ones protect less.
"""

from __future__ import annotations

import ctypes
import os
import struct
from contextlib import suppress
from functools import cache

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    # A function of the C library and its arguments.
    Call = tuple[Callable[..., Any], tuple[int, ...]]

_LIBRARY = ctypes.CDLL(None, use_errno=True)
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_QUERY, _PATH_BENEATH = 1, 1

_WRITE_FILE = 1 << 1
# REMOVE_DIR, REMOVE_FILE and the seven MAKE_*.
_CHANGE_DIRECTORY = sum(1 << bit for bit in range(4, 13))
_REFER, _TRUNCATE, _IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
_EXECUTE, _READ_FILE, _READ_DIRECTORY = 1 << 0, 1 << 2, 1 << 3
_TCP = 0b11
_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11
# The version from which a confined process can't signal processes outside.
SCOPES_SIGNALS = 6
# Device files that programs write to without harm.
_DEVICES = ("/dev/null", "/dev/zero")


@cache
def version() -> int:
    """Returns the kernel's Landlock version (its ABI), 0 if it has none or it is switched off."""
    return max(_syscall(_CREATE_RULESET, None, 0, _VERSION_QUERY), 0)


def write_accesses(abi: int) -> int:
    """Returns the ways to change files, directories and devices that version `abi` (1 or more) knows, as bits of LANDLOCK_ACCESS_FS."""
    return (
        _WRITE_FILE
        | _CHANGE_DIRECTORY
        | (_REFER if abi >= 2 else 0)
        | (_TRUNCATE if abi >= 3 else 0)
        | (_IOCTL_DEVICE if abi >= 5 else 0)
    )


def ruleset(writable: str) -> int | None:
    """Returns a new file descriptor of rules that allow writing only below `writable` and to a few devices; None without Landlock.

    They also deny what the module says, as far as the kernel knows it. Raises OSError if the kernel refuses, or `writable` isn't there.
    """
    return _ruleset(writable, None)


def program_ruleset(writable: str, readable: Sequence[str]) -> int | None:
    """Makes rules like `ruleset` that also allow reading and executing only there and at or below `readable`, of which some may be gone."""
    return _ruleset(writable, readable)


def _ruleset(writable: str, readable: Sequence[str] | None) -> int | None:
    abi = version()
    if abi == 0:
        return None
    writing, reading = write_accesses(abi), 0 if readable is None else _EXECUTE | _READ_FILE | _READ_DIRECTORY
    attributes = struct.pack(
        "=QQQ",
        writing | reading,
        _TCP if abi >= 4 else 0,
        _SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS if abi >= SCOPES_SIGNALS else 0,
    )
    size = 24 if abi >= SCOPES_SIGNALS else 16 if abi >= 4 else 8
    fd = _checked(_CREATE_RULESET, attributes, size, 0)
    try:
        _allow(fd, [writable], writing | reading)
        _allow(fd, _DEVICES, writing & (_WRITE_FILE | _TRUNCATE))
        for path in readable or ():
            with suppress(FileNotFoundError, PermissionError):
                _allow(fd, [path], reading if os.path.isdir(path) else reading & ~_READ_DIRECTORY)
    except BaseException:
        os.close(fd)
        raise
    return fd


def restriction(rules: int | None) -> list[Call]:
    """Lists the calls that put a process and all it will start under `rules`, for good; none without rules.

    A call doesn't return 0 if it is refused. It needs no_new_privs (or privileges).
    """
    return [] if rules is None else [(_LIBRARY.syscall, (_RESTRICT_SELF, rules, 0))]


def _allow(rules: int, paths: Sequence[str], accesses: int) -> None:
    for path in paths:
        target = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            _checked(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", accesses, target), 0)
        finally:
            os.close(target)


def _syscall(call: int, *arguments: bytes | int | None) -> int:
    converted = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result: int = _LIBRARY.syscall(ctypes.c_long(call), *converted)
    return result


def _checked(call: int, *arguments: bytes | int | None) -> int:
    result = _syscall(call, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return result
