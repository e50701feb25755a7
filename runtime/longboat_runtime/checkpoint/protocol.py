"""The protocol of a job's checkpoints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Manifest:
    """A complete checkpoint of one step boundary.

    `directory` holds it; `state` is the driver's part as JSON values (data cursor, ledger, log position, weight version).
    """

    incarnation: int
    step: int
    directory: Path
    state: Mapping[str, Any]

    @property
    def model(self) -> Path:
        """What `TrainerGroup.write` wrote and `restore` reads."""
        return self.directory / "trainer"


class Checkpoints(Protocol):
    """The complete checkpoints of all incarnations of a job, and the way to make another one.

    `damaged` names those that `newest` passed over because their files are not as they were written, each with the cause. The newest
    `keep` stay; a change of that number takes effect when the next one is saved.
    """

    damaged: tuple[str, ...]
    keep: int

    def newest(self) -> Manifest | None:
        """Highest incarnation first, then highest step: what a lost driver still writes never counts. None if there is none.

        Raises SpecProblem (CheckpointCorrupt) if there are some and none is whole.
        """

    async def save(
        self, step: int, state: Mapping[str, Any], write_model: Callable[[Path], Awaitable[None]]
    ) -> Manifest:
        """One transaction: `write_model(directory / "trainer")`, then files, directory and manifest, the manifest last.

        Then removes checkpoints beyond `keep`. Raises SpecProblem (CheckpointVolumeFull) or OSError with the earlier ones
        untouched and nothing half-made left behind.
        """
