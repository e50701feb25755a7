"""Checkpoints of a job on its volume: one transaction each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.checkpoint import files, manifest
from longboat_runtime.checkpoint.layout import INCARNATIONS, Position, parse, removable
from longboat_runtime.checkpoint.manifest import FileEntry
from longboat_runtime.checkpoint.protocol import MODEL, Manifest
from longboat_runtime.checkpoint.volume import volume_problem

log = structlog.get_logger()

STATE = "state.json"


def incarnations(root: Path) -> list[int]:
    """Lists all incarnations that have come up: each has a directory from its start, for its metrics and its log."""
    return [int(path.name) for path in (root / INCARNATIONS).glob("*") if path.name.isdecimal()]


class CheckpointStore:
    """Checkpoints of all incarnations below `root`; new ones belong to `incarnation`. Implements `protocol.Checkpoints`.

    A checkpoint's files are written into its own directory and made durable, then its manifest is renamed into place. A directory without
    a manifest belongs to a checkpoint that was never finished, or that was being removed.
    """

    def __init__(self, root: Path, keep: int, incarnation: int) -> None:
        self.root, self.keep, self.incarnation = root, keep, incarnation
        self.damaged: tuple[str, ...] = ()
        # Checkpoints that ranks found damaged, with the cause, and all that were found damaged.
        self._passed_over: dict[Position, str] = {}
        self._damaged: set[Position] = set()

    @property
    def has_own(self) -> bool:
        """Whether the job has completed a checkpoint, whose files may be damaged. Reads none of them."""
        return bool(self._complete())

    def newest(self, step: int | None = None) -> Manifest | None:
        """Returns the newest checkpoint (of `step`, if given) that isn't known to be damaged. None if there is none.

        Highest incarnation first, then highest step. Reads manifest and state, and compares the sizes of all other files, whose content
        ranks check; newer checkpoints that are not as they were written are then in `damaged`, each with the cause. Raises SpecProblem
        (CheckpointCorrupt) if there are some and all are damaged: starting over silently would throw away training that may still be
        rescued. Raises OSError if files can't be read.
        """
        damaged: list[str] = []
        for position in sorted(self._complete(), reverse=True):
            if step is not None and position.step != step:
                continue
            try:
                if cause := self._passed_over.get(position):
                    raise files.FilesDamaged(cause)
                checkpoint = self._open(position)
            except (manifest.ManifestInvalid, files.FilesDamaged, ValueError) as error:
                log.warning("checkpoint is damaged", checkpoint=str(position.path), error=str(error))
                damaged.append(f"{self.root / position.path} ({error})")
                self._damaged.add(position)
            else:
                self.damaged = tuple(damaged)
                return checkpoint
        if damaged:
            message = (
                f"No checkpoint is whole: {'; '.join(damaged)}. Check the storage behind the claim and restore the files; to "
                "start over, remove these directories or use another claim, in a new job."
            )
            raise SpecProblem(Reason.CHECKPOINT_CORRUPT, "spec.checkpoint", message)
        return None

    def pass_over(self, checkpoint: Manifest, cause: str) -> None:
        """See protocol.Checkpoints."""
        self._passed_over[Position(checkpoint.incarnation, checkpoint.step)] = cause

    def newest_state(self, step: int | None = None) -> Mapping[str, Any] | None:
        """Returns the driver's state in the newest complete checkpoint (of `step`, if given) where it can be read; None if there is none.

        Files of that checkpoint may be damaged.
        """
        for position in sorted(self._complete(), reverse=True):
            with suppress(OSError, ValueError):
                if step in (None, position.step):
                    state: Mapping[str, Any] = json.loads((self.root / position.path / STATE).read_text())
                    return state
        return None

    async def save(
        self, step: int, state: Mapping[str, Any], write_model: Callable[[Path], Awaitable[Sequence[FileEntry]]]
    ) -> Manifest:
        """Saves in one transaction: state, `write_model(directory / MODEL)`, and the manifest last. Then removes old checkpoints.

        One at a time: the next begins when this has returned. One that this incarnation has already completed is kept
        (ManifestInvalid, FilesDamaged or ValueError if it is visibly damaged).
        Raises SpecProblem (CheckpointVolumeFull, CheckpointVolumeNotWritable), another OSError, or what `write_model` raised;
        earlier checkpoints are then untouched, and this one is removed as far as possible, unless it was complete already.
        """
        position = Position(self.incarnation, step)
        directory = self.root / position.path
        if (directory / manifest.NAME).is_file():
            return await asyncio.to_thread(self._open, position)
        try:
            encoded = json.dumps(state).encode()
            await asyncio.to_thread(self._begin, directory, encoded)
            model = await write_model(directory / MODEL)
            await asyncio.to_thread(self._finish, position, encoded, model)
        except Exception as error:
            await asyncio.to_thread(self._give_up, directory)
            if isinstance(error, OSError) and (problem := volume_problem(error, fatal=False)):
                raise problem from error
            raise
        await asyncio.to_thread(self._prune, position)
        return Manifest(self.incarnation, step, directory, state, tuple(model))

    def _begin(self, directory: Path, state: bytes) -> None:
        files.remove_tree(directory)
        files.make_directory(directory)
        # The incarnation's directory exists already: its metrics or its log created it, without syncing that.
        files.fsync_directory(self.root / INCARNATIONS)
        files.fsync_directory(self.root)
        files.write_durably(directory / STATE, state)

    def _finish(self, position: Position, state: bytes, model: Sequence[FileEntry]) -> None:
        directory = self.root / position.path
        files.fsync_tree(directory)
        model_entries = (each.model_copy(update={"path": f"{MODEL}/{each.path}"}) for each in model)
        entries = (files.entry(STATE, state), *model_entries)
        # Ranks may write on other nodes: if their files aren't on the driver's volume, there is no checkpoint.
        files.check_sizes(directory, entries)
        content = manifest.ManifestFile(incarnation=position.incarnation, step=position.step, files=entries)
        files.write_durably(directory / manifest.NAME, manifest.encode(content))

    def _give_up(self, directory: Path) -> None:
        try:
            files.remove_tree(directory)
        except OSError as error:
            # What is left has no manifest, and is removed with the next checkpoint.
            log.warning("an unfinished checkpoint could not be removed", directory=str(directory), error=str(error))

    def _prune(self, saved: Position) -> None:
        usable, newest = set(self._complete()) - self._damaged, max(incarnations(self.root))
        try:
            for position in removable(self._positions(), usable, self.keep, saved, newest):
                files.remove_tree(self.root / position.path)
        except OSError as error:
            # `saved` is complete all the same; what is left is removed with the next one.
            log.warning("an old checkpoint could not be removed", error=str(error))

    def _open(self, position: Position) -> Manifest:
        directory = self.root / position.path
        content = manifest.decode((directory / manifest.NAME).read_bytes())
        if (content.incarnation, content.step) != position:
            raise manifest.ManifestInvalid(f"the manifest in {position.path} is that of another checkpoint")
        files.check_sizes(directory, content.files)
        entries = {each.path: each for each in content.files}
        if STATE not in entries:
            raise manifest.ManifestInvalid(f"the manifest in {position.path} has no {STATE}")
        state = json.loads(files.read(directory, entries[STATE]))
        prefix = f"{MODEL}/"
        model = (
            each.model_copy(update={"path": path.removeprefix(prefix)})
            for path, each in entries.items()
            if path.startswith(prefix)
        )
        return Manifest(position.incarnation, position.step, directory, state, tuple(model))

    def _complete(self) -> list[Position]:
        return [position for position in self._positions() if (self.root / position.path / manifest.NAME).is_file()]

    def _positions(self) -> list[Position]:
        positions = (parse(path.parent.name, path.name) for path in (self.root / INCARNATIONS).glob("*/step-*"))
        return [position for position in positions if position is not None]
