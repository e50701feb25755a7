"""How a driver's run ends."""

from __future__ import annotations

from enum import StrEnum


class RunOutcome(StrEnum):
    """Says how a driver's run ended."""

    DONE = "done"
    SUSPENDED = "suspended"
    STOPPED = "stopped"
    """Saved like a suspended job, but only because the driver's process must end."""
    IDLE = "idle"
    """Saved as well, but failed: it has learned nothing."""
