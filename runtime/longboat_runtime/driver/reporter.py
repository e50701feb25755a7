"""Maintains the job's status: state, progress, the newest checkpoint, and current problems that a person should know about."""

from __future__ import annotations

import datetime
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from longboat_crds.reasons import Reason
from longboat_crds.status import (
    LINE_LENGTH,
    PLACE_LENGTH,
    RECENT_RESHAPES,
    RECENT_ROUNDS,
    RESUMED_DIFFERENCES,
    CheckpointStatus,
    Demand,
    DomainTraining,
    Problem,
    ReshapeSummary,
    ResumedStatus,
    RewardDemand,
    RewardGrading,
    RolloutDemand,
    RoundSummary,
    TrackingStatus,
    Training,
    TrainingState,
)
from longboat_graders.messages import IsolationInForce
from longboat_runtime.checkpoint.digests import Difference
from longboat_runtime.checkpoint.protocol import Manifest
from longboat_runtime.driver.broker import Broker
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.stages import StageClock
from longboat_runtime.driver.status import DriverStatus
from longboat_runtime.metrics.queue import queue_line
from longboat_runtime.metrics.record import Record
from longboat_runtime.metrics.reports import Reports
from longboat_runtime.metrics.timeouts import learned_limits, timeout_metrics
from longboat_runtime.reward.timeouts import LearnedTimeouts
from longboat_runtime.rounds import measurements
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.rounds.view import View

# `status.problem` has room for one problem: the first of these that is present.
_FOREMOST_FIRST = (
    Reason.CHECKPOINT_MISMATCH,
    Reason.CHECKPOINT_VOLUME_FULL,
    Reason.STAGE_STUCK,
    Reason.TRAINER_LOST,
    Reason.NO_ENGINES,
    Reason.NO_GRADERS,
    Reason.GRADERS_DISAGREE,
    Reason.ENGINE_REFUSED,
    Reason.CHECKPOINT_CORRUPT,
    Reason.LOSS_NOT_FINITE,
    Reason.GRADER_ERRORS,
    Reason.REWARD_SUSPECT,
    Reason.NO_LEARNING_SIGNAL,
    Reason.PROFILE_INVALID,
    Reason.LENGTH_BIAS,
    Reason.NOTHING_LEFT_TO_LEARN,
    Reason.SAMPLES_NOT_WRITTEN,
    Reason.TRACKING_FAILED,
)
_MESSAGE_LIMIT = 4096


class Problems:
    """Problems that aren't fatal: the job continues, and each is cleared once its cause is gone."""

    def __init__(self) -> None:
        self._problems: dict[Reason, Problem] = {}

    def put(self, reason: Reason, field: str | None, message: str) -> None:
        """Sets the problem of this reason."""
        self._problems[reason] = Problem(reason=reason, field=field, message=message[:_MESSAGE_LIMIT])

    def set(self, reason: Reason, field: str | None, message: str, present: bool) -> None:
        """Sets the problem if `present`, else clears it."""
        if present:
            self.put(reason, field, message)
        else:
            self.clear(reason)

    def get(self, reason: Reason) -> Problem | None:
        """Returns the problem of this reason, or None."""
        return self._problems.get(reason)

    def clear(self, reason: Reason) -> None:
        """Removes the problem of this reason."""
        self._problems.pop(reason, None)

    @property
    def foremost(self) -> Problem | None:
        return next((self._problems[reason] for reason in _FOREMOST_FIRST if reason in self._problems), None)


class Reporter:
    """Publishes the status through the broker, also when the foremost stage changes. `clock` is Unix time in seconds."""

    def __init__(
        self, job: Job, broker: Broker, reports: Reports, stages: StageClock, clock: Callable[[], float]
    ) -> None:
        self.reports, self.stages, self.problems = reports, stages, Problems()
        self._job, self._broker, self._clock = job, broker, clock
        self._state = TrainingState.STARTING
        self._fatal: Problem | None = None
        self._before = broker.previous.training
        self._checkpoint: CheckpointStatus | None = broker.previous.checkpoint
        self._export: str | None = None
        self._view: View | None = None
        before = self._before.recent_rounds if self._before else None
        self._rounds: deque[RoundSummary] = deque(before or (), maxlen=RECENT_ROUNDS)
        self._length_bias = self._before.length_bias if self._before else None
        domains = self._before.domains or () if self._before else ()
        self._domain_bias = {training.domain: training.length_bias for training in domains if training.length_bias}
        self._audit_rounds = self._before.audit_rounds if self._before else None
        self._attention = self._before.attention if self._before else None
        self._skipped = self._before.skipped_prompts if self._before else None
        self._tracking = (self._before.tracking if self._before else None) or TrackingStatus()
        self._resumed = (self._before.resumed if self._before else None) or ResumedStatus()
        self._rewards = self._before.rewards if self._before else None
        self._metrics: dict[str, float] = {}
        self._tensor_parallel: int | None = None
        self._demand = Demand()
        before_reshapes = self._before.reshapes if self._before else None
        self._reshapes: deque[ReshapeSummary] = deque(before_reshapes or (), maxlen=RECENT_RESHAPES)
        stages.changed = self.publish

    def resume(self, view: View, saved: Manifest | None) -> None:
        """Reports from now on that the job runs, with its progress from `view`; `saved` is its newest checkpoint, if it has one."""
        self._view, self._state = view, TrainingState.RUNNING
        # Rounds that the previous driver made after the checkpoint will be repeated.
        summaries = [summary for summary in self._rounds if summary.step <= view.step]
        self._rounds = deque(summaries, maxlen=RECENT_ROUNDS)
        newest = self._checkpoint
        # What is known of it already, such as when it was completed, stays.
        if saved and (newest is None or (newest.incarnation, newest.step) != (saved.incarnation, saved.step)):
            self.saved(saved)
        self.publish()

    def resumed(self, accepted: Sequence[Difference], fields: Sequence[str]) -> None:
        """Reports accepted differences from the checkpoint, after those reported before, and the `fields` in which the spec differs."""
        lines = _lines([*(self._resumed.accepted or ()), *map(str, accepted)])
        self._resumed = ResumedStatus(accepted=lines, spec=_lines(fields) or self._resumed.spec)

    @property
    def step(self) -> int:
        """The last committed step; 0 until the job runs."""
        return self._view.step if self._view else 0

    @property
    def samples(self) -> str:
        """The number of samples in each state that any is in, as text; `none` without samples."""
        counts = self._view.counts if self._view else {}
        return ", ".join(f"{count} {state}" for state, count in sorted(counts.items()) if count) or "none"

    def set_state(self, state: TrainingState, fatal: Problem | None = None) -> None:
        """Sets the job's state; `fatal` says why it failed."""
        self._state, self._fatal = state, fatal
        self.publish()

    def saved(self, manifest: Manifest) -> None:
        """Reports the newest complete checkpoint."""
        self._checkpoint = CheckpointStatus(
            incarnation=manifest.incarnation,
            step=manifest.step,
            path=str(manifest.directory.relative_to(self._job.root)),
            export=self._export,
            time=self._now(),
        )
        self.publish()

    def exported(self, path: str) -> None:
        """Reports that the newest exported model is at `path` below the checkpoint directory, or will with the first checkpoint."""
        self._export = path
        if self._checkpoint:
            self._checkpoint = self._checkpoint.model_copy(update={"export": path})
        self.publish()

    def audited(self, line: str, of_domains: Mapping[str, str]) -> None:
        """Reports the last audit of response lengths: over all prompts, and by domain."""
        self._length_bias, self._domain_bias = line, dict(of_domains)

    def compared(self, line: str) -> None:
        """Reports how trained responses compare with those of audit rounds."""
        self._audit_rounds = line

    def reshaped(self, body: measurements.Reshaped) -> None:
        """Reports the shape that engines have now, and why they were reshaped."""
        self._reshapes.append(
            ReshapeSummary(
                step=self.step,
                tensor_parallel=body.tensor_parallel,
                reason=body.reason[:LINE_LENGTH],
                seconds=format(sum(body.seconds.values()), ".1f"),
                failure=body.failure[:LINE_LENGTH] or None,
            )
        )
        self.set_tensor_parallel(body.tensor_parallel)
        self.publish()

    def ask(self, demand: RolloutDemand) -> None:
        """Asks for rollout pods."""
        self._demand = self._demand.model_copy(update={"rollout": demand})
        self.publish()

    def ask_cpus(self, demand: RewardDemand) -> None:
        """Asks for CPUs of reward pools."""
        self._demand = self._demand.model_copy(update={"reward": demand})
        self.publish()

    def set_tensor_parallel(self, devices: int) -> None:
        """Sets how many devices an engine has."""
        self._tensor_parallel = devices

    def set_attention(self, attention: str) -> None:
        """Sets how samples are batched through the model: packed or padded, and by which attention."""
        self._attention = attention

    def set_skipped_prompts(self, prompts: int | None) -> None:
        """Sets how many rows of the dataset are known to be too long; None if such rows fail the job."""
        self._skipped = prompts

    def tracked(self, tracker: str, place: str) -> None:
        """Reports where a tracker, by its field of `spec.tracking`, shows the job."""
        self._tracking = TrackingStatus.model_validate({**self._tracking.to_json(), tracker: place[:PLACE_LENGTH]})
        self.publish()

    def set_tracking_problems(self, problems: Sequence[tuple[str, str]]) -> None:
        """Reports why trackers don't log: of each the field below `spec.tracking`, and the message."""
        field = f"spec.tracking.{problems[0][0]}" if problems else None
        message = " ".join(message for _, message in problems)
        self.problems.set(Reason.TRACKING_FAILED, field, message, bool(problems))
        self.publish()

    def graded(self, step: int, isolation: Mapping[str, IsolationInForce], timeouts: LearnedTimeouts) -> None:
        """Reports how the grades of each reward are kept apart, by its name, and with the record of `step` the limits learned for them."""
        self.reports.add(step, timeout_metrics(timeouts))
        learned = learned_limits(timeouts)
        self._rewards = [
            RewardGrading(
                name=name,
                isolation=grading.isolation.value,
                reason=grading.reason[:LINE_LENGTH] or None,
                learned_limits=list(learned.get(name, ())) or None,
            )
            for name, grading in isolation.items()
        ] or None

    def remember(self, metrics: Mapping[str, float]) -> None:
        """Keeps metrics that the status shows until newer values come."""
        self._metrics.update(metrics)

    def finish_step(self, step: int, *, timed: bool, devices: int) -> Record:
        """Writes the record of `step` (see `Reports.finish`) and publishes the progress."""
        record = self.reports.finish(step, timed=timed, devices=devices)
        self.remember(record.metrics)
        if timed:
            self._rounds.append(_summary(step, record.metrics))
        self.publish()
        return record

    def publish(self) -> None:
        """Publishes the current status."""
        self._broker.publish(
            DriverStatus(
                training=self._training(),
                demand=self._demand if self._demand.to_json() else None,
                checkpoint=self._checkpoint,
                problem=self._fatal or self.problems.foremost,
            )
        )

    def _training(self) -> Training:
        view, before, foremost = self._view, self._before, self.stages.foremost
        kinds = [round_.kind for round_ in view.rounds.values()] if view else []
        speed = self._metrics.get("perf/tokens_per_second")
        return Training(
            incarnation=self._job.incarnation,
            state=self._state,
            step=view.step if view else before.step if before else 0,
            steps=view.steps if view else self._job.spec.rounds.steps,
            stage=str(foremost) if foremost else None,
            reward=self._text("critic/score/mean", ".4g", before.reward if before else None),
            accuracy=self._text("val/accuracy/mean", ".4g", before.accuracy if before else None),
            tokens_per_second=None if speed is None else round(speed),
            step_seconds=self._text("timing_s/step", ".1f"),
            weight_version=view.serving if view else None,
            parity=self._text("sync/parity_max", ".1e"),
            attention=self._attention[:LINE_LENGTH] if self._attention else None,
            skipped_prompts=self._skipped,
            queue=queue_line(self._metrics),
            length_bias=self._length_bias,
            audit_rounds=self._audit_rounds,
            rewards=self._rewards,
            domains=self._domains(),
            recent_rounds=list(self._rounds) or None,
            tensor_parallel=self._tensor_parallel,
            reshapes=list(self._reshapes) or None,
            tracking=self._tracking if self._tracking.to_json() else None,
            resumed=self._resumed if self._resumed.to_json() else None,
            updated=self._now(),
            **({"round_kind": str(kinds[-1])} if kinds else {}),
        )

    def _domains(self) -> list[DomainTraining] | None:
        """Returns the domains with a quota, in the order of the quotas; None without any.

        Before there is a view, they are as an earlier start left them.
        """
        if self._view is None:
            return self._before.domains if self._before else None
        waiting, bias = self._view.queued_by_domain, self._domain_bias
        return [
            DomainTraining(domain=name, waiting=waiting.get(name, 0), length_bias=bias.get(name))
            for name in (quota.domain for quota in self._job.spec.rounds.quotas or ())
        ] or None

    def _text(self, metric: str, form: str, otherwise: str | None = None) -> str | None:
        return format(self._metrics[metric], form) if metric in self._metrics else otherwise

    def _now(self) -> str:
        moment = datetime.datetime.fromtimestamp(self._clock(), tz=datetime.UTC)
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _lines(texts: Sequence[str]) -> list[str] | None:
    """Returns the last RESUMED_DIFFERENCES different texts as lines; None if there are none. Pure."""
    return [text[:LINE_LENGTH] for text in dict.fromkeys(texts)][-RESUMED_DIFFERENCES:] or None


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
