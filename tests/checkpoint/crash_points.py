"""Kills a driver before each file operation of two checkpoints and prints what the next one finds, as JSON lines.

Runs as a script of its own, since it forks and so must not have started threads. Each child is killed at one operation; then,
for a loss of power, what it hadn't synced is taken away: names from directories, halves from files.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from longboat_runtime.checkpoint.store import CheckpointStore
from longboat_runtime.driver.resume import Loaded, Restored
from longboat_runtime.driver.run_state import RunState
from longboat_runtime.eventlog import EventLog
from longboat_runtime.reward.tasks import TaskRewards
from longboat_runtime.reward.timeouts import LearnedTimeouts
from longboat_runtime.rounds.audit.history import LengthHistory
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.trainer.protocol import ModelInfo
from tests.driver.fakes import Site, fixed_shape, make_spec

KILLED = 9
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Disk:
    """Counts file operations below `root`, ends the process before number `deadline`, and notes what has been synced."""

    def __init__(self, root: Path, deadline: int, notes: Path) -> None:
        self.root, self.deadline, self.notes = str(root), deadline, notes
        self.count = 0
        self.synced_files: set[int] = set()
        self.synced_names: dict[str, list[str]] = {}
        self.fsync = os.fsync
        os.fsync = self._synced
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        changes = event in CHANGES or (event == "open" and arguments[2] & WRITING)
        if changes and str(arguments[0]).startswith(self.root):
            self._operation()
        if event == "os.rename" and (names := self.synced_names.pop(str(arguments[0]), None)) is not None:
            self.synced_names[str(arguments[1])] = names

    def _operation(self) -> None:
        self.count += 1
        if self.count == self.deadline:
            self.stop(KILLED)

    def _synced(self, descriptor: int) -> None:
        self._operation()
        self.fsync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_dir():
            self.synced_names[str(path)] = [entry.name for entry in path.iterdir()]
        else:
            self.synced_files.add(os.fstat(descriptor).st_ino)

    def stop(self, code: int) -> None:
        """Ends the process at once, leaving notes for `lose_power`."""
        self.root = "/nowhere"
        self.notes.write_text(json.dumps([sorted(self.synced_files), self.synced_names]))
        os._exit(code)


async def save(root: Path, incarnation: int, *steps: int) -> None:
    """Checkpoints of these steps, each written while the weights change; the two newest are kept."""
    site = Site(root, make_spec(checkpoint={"keep": 2}))
    site.incarnation = incarnation - 1
    driver = site.driver()
    log = EventLog(root, incarnation, {})
    ledger = Ledger(2)
    run_state = RunState(
        ledger, LengthHistory(), LearnedTimeouts((), str), fixed_shape(ledger), TaskRewards(()), log, audited=False
    )
    boundary = run_state.boundary("job", {}, {})
    loaded = Loaded(ModelInfo(1, 1, 1), None, {})
    driver._steps.resume(Restored(run_state, boundary, None, [], loaded), streams=False)
    async with driver._context.background:
        for step in steps:
            site.trainer.weights = f"of step {step}"
            ledger.step = step
            await driver._steps.save(run_state.boundary("job", {}, {}), needed=False)
            site.trainer.weights = "of a later step"
        await driver._steps.wait_for_write()
    log.close()
    site.reporter.reports.close()


def lose_power(root: Path, before: dict[str, list[str]], notes: Path) -> None:
    """Takes away what was not durable; `before` are the names that were there before the process started."""
    files, names = json.loads(notes.read_text())
    for directory, subdirectories, entries in os.walk(root):
        durable = set(names.get(directory, [])) | set(before.get(directory, []))
        for name in [*subdirectories, *entries]:
            path = Path(directory) / name
            if name not in durable:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            elif path.is_file() and name not in before.get(directory, []) and path.stat().st_ino not in files:
                os.truncate(path, path.stat().st_size // 2)
        subdirectories[:] = [name for name in subdirectories if name in durable]


def _save_again(root: Path) -> None:
    asyncio.run(save(root, 2, 30, 40))


def dies(work: Callable[[], object], root: Path, operation: int, *, power: bool) -> bool:
    """Does `work` below `root` in a process that dies before this file operation, if it comes so far; returns whether it did.

    With `power` what wasn't durable then is gone.
    """
    before = {directory: [*subs, *entries] for directory, subs, entries in os.walk(root)}
    notes = root.parent / "notes"
    child = os.fork()
    if child == 0:
        disk = Disk(root, operation, notes)
        work()
        disk.stop(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if power:
        lose_power(root, before, notes)
    return code == KILLED


def main(scratch: Path) -> None:
    """For each kind of death and each operation: die there, then look, then save again."""
    template = scratch / "template"
    asyncio.run(save(template, 1, 10, 20))
    for power in (False, True):
        died, operation = True, 0
        while died:
            operation += 1
            root = scratch / f"{'power' if power else 'kill'}-{operation}"
            shutil.copytree(template, root)
            died = dies(partial(_save_again, root), root, operation, power=power)
            found = CheckpointStore(root, 2, 3).newest()
            weights = (found.model / "weights").read_text() if found else None
            asyncio.run(save(root, 3, 50))
            left = sorted(str(path.relative_to(root)) for path in root.glob("incarnations/*/step-*"))
            line = {"power": power, "operation": operation, "died": died, "left": left}
            line["found"] = [found.incarnation, found.step, found.state["ledger"]["step"], weights] if found else None
            print(json.dumps(line))
            shutil.rmtree(root)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
