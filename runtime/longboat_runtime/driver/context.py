"""What the parts of a driver share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from longboat_runtime.driver.background import Background
from longboat_runtime.driver.broker import Broker
from longboat_runtime.driver.components import Components
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.driver.sample_data import SampleData
from longboat_runtime.driver.stages import StageClock
from longboat_runtime.metrics.reports import Reports
from longboat_runtime.rounds.events import Body
from longboat_runtime.rounds.measurements import Measurement
from longboat_runtime.samples import FinishedSample, LostSample

Inbox = asyncio.Queue[Body | Measurement | RunOutcome]
HeldOut = asyncio.Queue[FinishedSample | LostSample]


@dataclass(frozen=True, slots=True)
class Context:
    """Holds what the parts of one driver share.

    Whatever is put into `inbox` is handled after the event under way and its decisions. `held_out` gets samples of evaluations that come
    back from engines. `news` is set when a part's status has changed. `clock` is Unix time in seconds.
    """

    job: Job
    components: Components
    broker: Broker
    stages: StageClock
    reports: Reports
    background: Background
    data: SampleData
    clock: Callable[[], float]
    inbox: Inbox = field(default_factory=asyncio.Queue)
    held_out: HeldOut = field(default_factory=asyncio.Queue)

    @property
    def news(self) -> asyncio.Event:
        return self.stages.news


def open_context(
    job: Job,
    components: Components,
    broker: Broker,
    stages: StageClock,
    reports: Reports,
    clock: Callable[[], float],
) -> Context:
    """Makes what the parts of a driver of this job share."""
    background = Background()
    data = SampleData(components.store, background)
    return Context(job, components, broker, stages, reports, background, data, clock)
