"""The protocol of a job's checkpoints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from longboat_runtime.checkpoint.manifest import FileEntry

# The directory of a checkpoint that ranks write.
MODEL = "trainer"


@dataclass(frozen=True, slots=True)
class Manifest:
    """Describes a complete checkpoint of one step boundary.

    `directory` holds it; `state` is the driver's part, as JSON values (`driver.run_state.StepBoundary.to_state`). `model_files` describes
    the files in `model`; ranks check what they read against it.
    """

    incarnation: int
    step: int
    directory: Path
    state: Mapping[str, Any]
    model_files: tuple[FileEntry, ...]

    @property
    def model(self) -> Path:
        """The directory that `TrainerGroup.write` wrote and `restore` reads."""
        return self.directory / MODEL


class Checkpoints(Protocol):
    """Saves and finds the complete checkpoints of all incarnations of a job.

    `damaged` names those that `newest` passed over because their files have changed since they were written, each with the cause. The
    newest `keep` stay; a change of that number takes effect when the next one is saved. Nothing here reads what ranks have written.
    """

    damaged: tuple[str, ...]
    keep: int

    def newest(self) -> Manifest | None:
        """Returns the checkpoint of the highest incarnation, and of these the highest step; None without any checkpoint.

        So what a lost driver still writes doesn't count once a later one has saved. Those that are visibly damaged, or that `pass_over`
        has named, don't count. Raises SpecProblem (CheckpointCorrupt) if all that exist are damaged.
        """

    def pass_over(self, checkpoint: Manifest, cause: str) -> None:
        """Has `newest` pass over this checkpoint, since a rank has found one of its files damaged."""

    async def save(
        self, step: int, state: Mapping[str, Any], write_model: Callable[[Path], Awaitable[Sequence[FileEntry]]]
    ) -> Manifest:
        """Writes a checkpoint in one transaction: state, `write_model(directory / MODEL)`, and the manifest last.

        `write_model` describes the files that it has written. Then removes checkpoints beyond `keep`. Raises SpecProblem
        (CheckpointVolumeFull, CheckpointVolumeNotWritable), another OSError, or what `write_model` raised, and leaves the earlier ones
        untouched. A partial one doesn't count.
        """
