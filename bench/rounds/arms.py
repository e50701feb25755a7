"""What is compared: `spec.rounds` of each arm, apart from its size."""

from __future__ import annotations

from typing import Any

BASELINE = "Synchronous"
# The same but for sampleOvercommit, 1.0 and 1.25.
BY_SAMPLES = ("TailBatching-1.25", "TailBatching-1.25-1.25")
# Here the trainer works while engines do, on the same CPUs: steps of these engines take longer.
OVERLAPPING = ("BoundedAsync",)
# These are compared by how well they learn.
LEARNING = (BASELINE, "TailBatching-1.25", "ContinueUnfinished", "BoundedAsync")

ARMS: dict[str, dict[str, Any]] = {
    BASELINE: {"policy": "Synchronous"},
    "TailBatching-1.25": {"policy": "TailBatching", "promptOvercommit": 1.25, "sampleOvercommit": 1.0},
    "TailBatching-1.125": {"policy": "TailBatching", "promptOvercommit": 1.125, "sampleOvercommit": 1.0},
    "TailBatching-1.5": {"policy": "TailBatching", "promptOvercommit": 1.5, "sampleOvercommit": 1.0},
    "TailBatching-1.25-1.25": {"policy": "TailBatching", "promptOvercommit": 1.25, "sampleOvercommit": 1.25},
    "ContinueUnfinished": {"policy": "ContinueUnfinished", "promptOvercommit": 1.25},
    "BoundedAsync": {"policy": "BoundedAsync", "maxStaleness": 1},
}


def arm_named(name: str) -> str:
    """Raises ValueError for a name that isn't in the table."""
    if name not in ARMS:
        raise ValueError(f"no arm {name}: one of {', '.join(ARMS)}")
    return name
