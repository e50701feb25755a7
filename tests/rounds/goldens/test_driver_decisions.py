"""The driver decides as recorded, and asks engines to stop and to return the same samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from longboat_crds.algorithm import resolve
from longboat_crds.job import RLJobSpec
from longboat_runtime.driver.loop import Driver
from longboat_runtime.driver.observer import Observers
from longboat_runtime.driver.run_state import RunState
from longboat_runtime.eventlog import EventLog
from longboat_runtime.reward.tasks import TaskRewards
from longboat_runtime.reward.timeouts import LearnedTimeouts
from longboat_runtime.rounds.audit.history import LengthHistory
from longboat_runtime.rounds.events import Body, Event, Started
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.loop import RoundLoop
from longboat_runtime.rounds.snapshot import from_snapshot, to_snapshot
from longboat_runtime.samples import SampleId
from tests.driver.fakes import Site, fixed_shape
from tests.rounds.goldens.record import job, plain
from tests.rounds.goldens.test_decisions import Entry, recorded, replay
from tests.rounds.world import World


class Flow:
    """Stands in for the driver's sample flow, and notes which samples engines are asked to stop."""

    def __init__(self, loop: DriverLoop) -> None:
        self._loop = loop

    def abort(self, samples: Sequence[SampleId]) -> None:
        self._loop.entries[-1]["stop"] += [list(sample) for sample in samples]

    def pause(self, samples: Sequence[SampleId]) -> None:
        self._loop.entries[-1]["pause"] += [list(sample) for sample in samples]

    def __getattr__(self, name: str) -> Callable[..., None]:
        return _nothing


class Idle:
    """Stands in for parts that this test has no use for."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return _nothing


def _nothing(*_: object) -> None:
    pass


class NotedLog(EventLog):
    """Passes every event to the loop."""

    loop: DriverLoop

    def append(self, event: Event) -> None:
        super().append(event)
        self.loop.log.append(event)
        self.loop.entries[-1]["events"].append(plain(event.body))


class DriverLoop:
    """The driver's own loop, without components. `log` are the events that survive."""

    domain_of = staticmethod(World.domain_of)

    def __init__(self, spec: RLJobSpec, root: Path) -> None:
        self.entries: list[Entry] = []
        self.log: list[Event] = []
        self._root, self._site, self._incarnation = root, Site(root, spec), 0
        self._group_size = resolve(spec.algorithm).group_size
        self._committed: tuple[dict[str, Any], int] = (to_snapshot(Ledger(self._group_size, spec.rounds.steps)), 0)

    def start(self) -> None:
        self.entries.append({"start": True})
        snapshot, length = self._committed
        self.log = self.log[:length]
        self._driver: Any = self._site.driver()
        self._incarnation += 1
        ledger, lengths = from_snapshot(snapshot), LengthHistory()
        log = NotedLog(self._root, self._incarnation, snapshot)
        log.loop = self
        run_state = RunState(
            ledger, lengths, LearnedTimeouts((), str), fixed_shape(ledger), TaskRewards(()), log, audited=False
        )
        driver = self._driver
        driver._flow, driver._steps, driver._run_state, driver._view = Flow(self), Idle(), run_state, run_state.view
        driver._observers, driver.draw = Observers([]), partial(World.draw, self)
        driver._context = replace(driver._context, background=Idle(), data=Idle())
        driver._loop = RoundLoop(self._site.policy, driver, ledger, self._incarnation)
        driver._boundary = run_state.boundary("job", {}, {})
        self.record(Started(ledger.step))

    def record(self, body: Body) -> None:
        self.entries.append({"told": plain(body), "events": [], "stop": [], "pause": []})
        step = self._driver._run_state.ledger.step
        Driver._happened(self._driver, body)
        if self._driver._run_state.ledger.step > step:
            # Without the policy's decisions after the commit: a boundary is taken before the policy is asked.
            committed = next(i for i, event in enumerate(self.log) if event.seq == self._driver._boundary.ledger["seq"])
            self._committed = (dict(self._driver._boundary.ledger), committed + 1)


@pytest.mark.parametrize("run", recorded())
def test_the_driver_decides_as_recorded(run: Entry, tmp_path: Path) -> None:
    replay(run, DriverLoop(job(run["rounds"], run["algorithm"]), tmp_path))
