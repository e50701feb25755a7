"""Writes the job's status: its state and progress, and what the driver's parts add."""

from __future__ import annotations

import asyncio
import datetime
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from longboat_crds.reasons import Reason
from longboat_crds.status import RECENT_ROUNDS, Demand, Problem, RoundSummary, Training, TrainingState
from longboat_runtime.driver.broker import Broker
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.observer import Observer
from longboat_runtime.driver.resume import Restored
from longboat_runtime.driver.stages import StageClock
from longboat_runtime.driver.status import DriverStatus
from longboat_runtime.metrics.queue import queue_line
from longboat_runtime.metrics.record import Record
from longboat_runtime.metrics.reports import Reports
from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import Entry
from longboat_runtime.rounds.records import GroupRecord
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.rounds.view import View
from longboat_runtime.status_fragment import StatusFragment, StatusSource

Value = TypeVar("Value")

# `status.problem` has room for one problem: the first of these that is present.
_FOREMOST_FIRST = (
    Reason.CHECKPOINT_MISMATCH,
    Reason.CHECKPOINT_VOLUME_FULL,
    Reason.STAGE_STUCK,
    Reason.TRAINER_LOST,
    Reason.NO_ENGINES,
    Reason.NO_GRADERS,
    Reason.NO_ENVIRONMENTS,
    Reason.GRADERS_DISAGREE,
    Reason.ENGINE_REFUSED,
    Reason.CHECKPOINT_CORRUPT,
    Reason.LOSS_NOT_FINITE,
    Reason.GRADER_ERRORS,
    Reason.ENVIRONMENT_ERRORS,
    Reason.REWARD_SUSPECT,
    Reason.NO_LEARNING_SIGNAL,
    Reason.PROFILE_INVALID,
    Reason.LENGTH_BIAS,
    Reason.NOTHING_LEFT_TO_LEARN,
    Reason.SAMPLES_NOT_WRITTEN,
    Reason.TRACKING_FAILED,
)

# Fields of `status.training` that stay as an earlier start left them until this one knows better.
_KEPT = (
    "step",
    "reward",
    "accuracy",
    "attention",
    "skipped_prompts",
    "length_bias",
    "audit_rounds",
    "rewards",
    "domains",
    "reshapes",
    "resumed",
)


class Reporter(Observer):
    """Writes the status through the broker whenever a part of it is news. `clock` is Unix time in seconds.

    It is a source of the status itself.
    """

    watches = (events.RoundOpened, events.StepCommitted, events.Published)

    def __init__(
        self, job: Job, broker: Broker, reports: Reports, stages: StageClock, clock: Callable[[], float]
    ) -> None:
        self.reports, self.stages = reports, stages
        self.sources: list[StatusSource] = [self]
        self._job, self._broker, self._clock = job, broker, clock
        self._state = TrainingState.STARTING
        self._fatal: Problem | None = None
        self._before = broker.previous.training
        self._view: View | None = None
        self._records = RecentRecords(stages.news, self._before.recent_rounds or () if self._before else ())
        reports.sinks.append(self._records)

    def resume(self, restored: Restored) -> None:
        """Reports from now on that the job runs, with its progress.

        Rounds that the previous driver made after the checkpoint will be repeated.
        """
        self._view, self._state = restored.run_state.view, TrainingState.RUNNING
        self._records.forget_after(self._view.step)
        self.stages.news.set()

    def on(self, entry: Entry, before: GroupRecord | None) -> None:
        self.stages.news.set()

    async def run(self) -> None:
        """Writes the status whenever there is news, and once more at the end: the last news may have come with it."""
        try:
            while True:
                await self.stages.news.wait()
                self.stages.news.clear()
                self.publish()
        finally:
            self.publish()

    def set_state(self, state: TrainingState, fatal: Problem | None = None) -> None:
        """Sets the job's state and writes it at once; `fatal` says why it failed."""
        self._state, self._fatal = state, fatal
        self.publish()

    def publish(self) -> None:
        """Writes the status as it is now."""
        fragments = [source.status() for source in self.sources]
        demand = Demand(
            rollout=_first(fragment.rollout for fragment in fragments),
            reward=_first(fragment.reward for fragment in fragments),
            environment=_first(fragment.environment for fragment in fragments),
        )
        problems = {problem.reason: problem for fragment in fragments for problem in fragment.problems}
        self._broker.publish(
            DriverStatus(
                training=self._training(fragments),
                demand=demand if demand.to_json() else None,
                checkpoint=_first(fragment.checkpoint for fragment in fragments) or self._broker.previous.checkpoint,
                problem=self._fatal
                or next((problems[reason] for reason in _FOREMOST_FIRST if reason in problems), None),
            )
        )

    def _training(self, fragments: Sequence[StatusFragment]) -> Training:
        training = {name: getattr(self._before, name) for name in _KEPT} if self._before else {}
        for fragment in fragments:
            training |= {name: value for name, value in fragment.training.items() if value is not None}
        return Training(**training)

    def status(self) -> StatusFragment:
        """Returns the job's state and progress."""
        view, foremost = self._view, self.stages.foremost
        kinds = [round_.kind for round_ in view.rounds.values()] if view else []
        text, metrics = self._records.text, self._records.metrics
        speed = metrics.get("perf/tokens_per_second")
        return StatusFragment(
            {
                "incarnation": self._job.incarnation,
                "state": self._state,
                "step": view.step if view else None,
                "steps": view.steps if view else self._job.spec.rounds.steps,
                "stage": str(foremost) if foremost else None,
                "reward": text("critic/score/mean", ".4g"),
                "tokens_per_second": None if speed is None else round(speed),
                "step_seconds": text("timing_s/step", ".1f"),
                "weight_version": view.serving if view else None,
                "parity": text("sync/parity_max", ".1e"),
                "queue": queue_line(metrics),
                "recent_rounds": list(self._records.rounds) or None,
                "round_kind": str(kinds[-1]) if kinds else None,
                "updated": iso_time(self._clock()),
            }
        )


class RecentRecords:
    """A sink that keeps what the status shows of records: the newest value of each metric, and the last rounds."""

    def __init__(self, news: asyncio.Event, rounds: Iterable[RoundSummary]) -> None:
        self._news = news
        self.metrics: dict[str, float] = {}
        self.rounds: deque[RoundSummary] = deque(rounds, maxlen=RECENT_ROUNDS)

    def write(self, record: Record) -> None:
        """Notes the metrics of a step, and those of its round if the step was timed."""
        self.metrics.update(record.metrics)
        if "timing_s/step" in record.metrics:
            self.rounds.append(_summary(record.step, record.metrics))
        self._news.set()

    def forget_after(self, step: int) -> None:
        """Forgets the rounds of later steps."""
        self.rounds = deque((summary for summary in self.rounds if summary.step <= step), maxlen=RECENT_ROUNDS)

    def text(self, metric: str, form: str) -> str | None:
        """Formats a metric; None if no record had it."""
        return format(self.metrics[metric], form) if metric in self.metrics else None

    def close(self) -> None: ...


def iso_time(seconds: float) -> str:
    """Returns Unix time as the status has it."""
    return datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _first(values: Iterable[Value | None]) -> Value | None:
    return next((value for value in values if value is not None), None)


def _summary(step: int, metrics: Mapping[str, float]) -> RoundSummary:
    """Summarises the round that fed `step`. Pure."""
    return RoundSummary(
        round=int(metrics.get("training/round", 0)),
        step=step,
        kind=str(RoundKind.LONG if metrics.get("tail/round_kind") else RoundKind.SHORT),
        seconds=format(metrics.get("timing_s/step", 0.0), ".1f"),
        kept=int(metrics.get("rollout/kept_groups", 0)),
        deferred=int(metrics.get("rollout/deferred_groups", 0) + metrics.get("rollout/carried_groups", 0)),
        generated_to_kept=format(metrics.get("tail/generated_to_kept", 0.0), ".2f"),
        **_load(metrics),
    )


def _load(metrics: Mapping[str, float]) -> dict[str, Any]:
    """Returns the fields of the round's summary that say what engines felt; empty if that wasn't measured. Pure."""
    if "rollout/engines" not in metrics:
        return {}
    return {
        "tensor_parallel": int(metrics["rollout/tensor_parallel"]),
        "preemptions": int(metrics["rollout/preemptions"]),
        "kv_usage": format(metrics["rollout/kv_usage/max"], ".2f"),
    }
