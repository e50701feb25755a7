"""The models that a job exports while it runs, `exports/step-00000010/`, and the one at its end, `export/`."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import structlog

from longboat_crds.checkpoint import CheckpointSpec
from longboat_runtime.checkpoint.files import fsync_directory
from longboat_runtime.checkpoint.layout import step_name, step_of, surplus_exports
from longboat_runtime.checkpoint.store import incarnations

log = structlog.get_logger()

# Both below the checkpoint directory.
LAST, BY_STEP = "export", "exports"
# What an incarnation has not finished to write, or to remove.
_ASIDE = re.compile(r"\..+\.(\d+)\.(partial|removed)")


def is_due(step: int, steps: int, spec: CheckpointSpec) -> bool:
    """Whether to export the model after `step`: every `exportEverySteps`, but not after the last of `steps` if `export` does. Pure."""
    every = spec.export_every_steps
    return every is not None and step > 0 and step % every == 0 and not (spec.export and step >= steps)


def aside(directory: Path, incarnation: int) -> Path:
    """Returns where an incarnation writes an export until it is whole and gets its name. No other incarnation writes there. Pure."""
    return directory.with_name(f".{directory.name}.{incarnation}.partial")


class Exports:
    """Exports of all incarnations below `root`, of which the `keep` newest stay; new ones are written by `incarnation`."""

    def __init__(self, root: Path, keep: int, incarnation: int) -> None:
        self._root, self._keep, self._incarnation = root, keep, incarnation

    def path(self, step: int) -> Path:
        """Returns the directory of the export of a step. It is there only if it is whole."""
        return self._root / BY_STEP / step_name(step)

    def newest(self, step: int) -> Path | None:
        """Returns the newest export of `step` or an earlier one, None if there is none."""
        return self.path(max(steps)) if (steps := [each for each in self._steps() if each <= step]) else None

    def tidy(self) -> None:
        """Removes what earlier incarnations have not finished to write or to remove."""
        for directory in (self._root, self._root / BY_STEP):
            for path in directory.glob(".*"):
                match = _ASIDE.fullmatch(path.name)
                if match and int(match[1]) < self._incarnation and path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)

    def prune(self, written: int) -> None:
        """Removes the oldest exports once that of the step `written` is whole; none if a later incarnation has come up.

        A name goes before the files do, so what a crash leaves doesn't look whole.
        """
        if max(incarnations(self._root), default=0) > self._incarnation:
            return
        for step in surplus_exports(self._steps(), self._keep, written):
            path = self.path(step)
            removed = path.with_name(f".{path.name}.{self._incarnation}.removed")
            try:
                path.rename(removed)
                fsync_directory(path.parent)
                shutil.rmtree(removed)
            except OSError as error:
                log.warning("an old export could not be removed", export=str(path), error=str(error))

    def _steps(self) -> list[int]:
        steps = (step_of(path.name) for path in (self._root / BY_STEP).glob("step-*"))
        return [step for step in steps if step is not None]
