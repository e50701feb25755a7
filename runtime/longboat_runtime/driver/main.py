"""One start of a driver, from opening its components to its end."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

import structlog

from longboat_crds.problems import SpecProblem, spec_problem_in
from longboat_crds.status import TrainingState
from longboat_runtime.checkpoint.volume import volume_problem
from longboat_runtime.data.references import CONFIG_MAPS, resolved
from longboat_runtime.driver.assembly import RESUME, open_components
from longboat_runtime.driver.broker import Broker, Superseded
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.loop import Driver
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.driver.reporter import Reporter
from longboat_runtime.driver.stages import StageClock
from longboat_runtime.metrics.record import JsonLines, Sink
from longboat_runtime.metrics.reports import Reports
from longboat_runtime.metrics.tensorboard import TensorBoard
from longboat_runtime.rounds.policies import open_policy
from longboat_runtime.tracking.trackers import Trackers

log = structlog.get_logger()

RAY_NAMESPACE = "longboat"
# How long storing what trackers said last may take, in seconds.
TRACKED_SECONDS = 3.0


class Ending(StrEnum):
    """Says how a start ended, unless with an error that the next start may overcome."""

    DONE = "done"
    SUSPENDED = "suspended"
    STOPPED = "stopped"
    FAILED = "failed"
    SUPERSEDED = "superseded"


async def drive(
    job: Job,
    broker: Broker,
    sinks: Sequence[Sink] = (),
    sockets: Mapping[str, Path] | None = None,
    resume: Path = RESUME,
    config_maps: Path = CONFIG_MAPS,
    secrets: Path | None = None,
    environments: Mapping[str, Path] | None = None,
) -> tuple[Ending, SpecProblem | None]:
    """Runs the job until it ends or is suspended. On SIGTERM, once components are open, the job is saved and stopped.

    The status of this ending is stored before this returns, unless another driver has superseded this one.

    `sockets`, `environments` and `resume` are those of `open_components`, `config_maps` those of `resolved`. `secrets` is the directory with
    the credentials of trackers, None for those of the user who runs this.

    Returns how this start ended, and the problem if the job failed. Raises other errors, which the next start may overcome, such as a
    lost trainer, store or head.
    """
    reports = Reports([], time.time)
    reporter = Reporter(job, broker, reports, StageClock(time.monotonic), time.time)
    reporter.publish()
    previous, news = broker.previous.training, reporter.stages.news
    places = previous.tracking if previous else None
    name = job.name or job.identity
    trackers = Trackers(job.spec, job.root, job.incarnation, name, news, secrets, places)
    reporter.sources.append(trackers)
    ended = None
    try:
        reports.sinks += [*_files(job), *sinks]
        trackers.start()
        job = replace(job, spec=await asyncio.to_thread(resolved, job.spec, config_maps))
        async with open_components(job, sockets, resume, environments) as components:
            driver = Driver(job, components, open_policy(job.spec), reporter, broker, time.time)
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, driver.stop)
            outcome = await driver.run()
            await broker.flush()
        ended = "done" if outcome is RunOutcome.DONE else None
        return Ending(outcome), None
    except Exception as error:
        if superseded(error):
            log.warning("this driver has been superseded", error=str(error))
            return Ending.SUPERSEDED, None
        problem = spec_problem_in(error)
        if problem is None or not problem.fatal:
            raise
        log.error("the job can't continue", problem=str(problem))
        reporter.set_state(TrainingState.FAILED, problem.status)
        await broker.flush()
        ended = "failed"
        return Ending.FAILED, problem
    finally:
        reports.close()
        await trackers.finish(ended)
        reporter.publish()
        # The ending is stored already, so the job may be gone; what trackers said last isn't.
        with suppress(Superseded, TimeoutError):
            await asyncio.wait_for(broker.flush(), TRACKED_SECONDS)


def _files(job: Job) -> list[Sink]:
    """Opens the metric files on the checkpoint volume. Raises SpecProblem if it is full or not writable, or another OSError."""
    try:
        return [JsonLines(job.home / "metrics.jsonl"), TensorBoard(job.home / "tensorboard")]
    except OSError as error:
        raise volume_problem(error) or error from error


def superseded(error: BaseException) -> bool:
    """Whether `error` is, or a group holds, Superseded (pure)."""
    if isinstance(error, BaseExceptionGroup):
        return any(superseded(inner) for inner in error.exceptions)
    return isinstance(error, Superseded)


def first_error(error: BaseException) -> BaseException:
    """Returns the error, or the first one in a group, however nested (pure)."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
