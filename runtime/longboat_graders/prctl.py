"""Changes settings of this process in the kernel (prctl). Constants: linux/prctl.h."""

from __future__ import annotations

import ctypes
import os
import signal

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_SET_PDEATHSIG, _SET_DUMPABLE, _SET_CHILD_SUBREAPER, _SET_NO_NEW_PRIVS = 1, 4, 36, 38
_SET_KEEPCAPS, _CAP_AMBIENT, _CAP_AMBIENT_RAISE = 8, 47, 2
# Opened once: graders fork, and what is done before needn't be done in every fork.
_LIBRARY = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int, more: int = 0) -> None:
    if _LIBRARY.prctl(option, value, more, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl {option}: {os.strerror(ctypes.get_errno())}")


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Asks the kernel for a signal, SIGKILL by default, when this process' parent, or the parent's thread that started it, ends."""
    _prctl(_SET_PDEATHSIG, number)


def dying_with_parent() -> tuple[Callable[..., Any], tuple[int, ...]]:
    """Returns the call that `die_with_parent` makes by default, as function and arguments.

    It is for a fork, which shares more with its parent the less it does. The call returns 0 unless it is refused.
    """
    return _LIBRARY.prctl, (_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def hide_memory() -> None:
    """Keeps unprivileged processes of the same uid from this process' memory, and from its environment and open files in /proc.

    Forked children inherit that, programs started from here don't.
    """
    _prctl(_SET_DUMPABLE, 0)


def adopt_orphans() -> None:
    """Adopts, from now on, descendants whose parent ends: they become this process' children, unless one in between adopts them."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def gain_no_privileges() -> None:
    """Denies programs started from here on rights that this process lacks (no set-uid); unprivileged seccomp and Landlock require it."""
    _prctl(_SET_NO_NEW_PRIVS, 1)


def keep_capabilities() -> None:
    """Lets this process keep its permitted capabilities when it becomes another user than root."""
    _prctl(_SET_KEEPCAPS, 1)


def raise_ambient(capability: int) -> None:
    """Gives programs started from here a capability (linux/capability.h) that this process has, permitted and inheritable."""
    _prctl(_CAP_AMBIENT, _CAP_AMBIENT_RAISE, capability)


def show_memory() -> None:
    """Undoes `hide_memory` for this process."""
    _prctl(_SET_DUMPABLE, 1)
