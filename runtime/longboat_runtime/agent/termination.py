"""The last word of an agent that gives up, where the kubelet and so the operator finds it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

TERMINATION_LOG = Path("/dev/termination-log")
# The kubelet keeps 4096 bytes in all; a cause that people read is short.
_CHARACTERS = 1000


def termination_message(role: str, code: int | None, lines: Sequence[str], failures: int = 1) -> str:
    """What ended last and why; the cause, which is the last line a Python program or Ray writes, stands last. Pure."""
    how = "is gone" if code is None else f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
    cause = next((line for line in reversed(lines) if line), "it wrote nothing to standard error")
    often = f" (failure {failures} in a row)" if failures > 1 else ""
    return f"{role} {how}{often}: {cause}"[:_CHARACTERS]


def stuck_message(role: str, processes: Sequence[str], seconds: float) -> str:
    """What can't be ended. Pure."""
    what = f"{role} can't be ended: {seconds:g} s after SIGKILL these processes still wait for storage or a device"
    return f"{what}: {', '.join(processes)}"[:_CHARACTERS]


def write_termination_message(message: str, path: Path = TERMINATION_LOG) -> None:
    """Writes it where the kubelet looks, if this is a pod."""
    if path.exists():
        path.write_text(message)
