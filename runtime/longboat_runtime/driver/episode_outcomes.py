"""What becomes of a job's episodes: those that environments lose, and how long they wait for slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from longboat_crds.environments import EnvironmentSpec, environment_of
from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.driver.batch import Batch
from longboat_runtime.driver.context import Context
from longboat_runtime.driver.observer import Observer
from longboat_runtime.driver.resume import Restored
from longboat_runtime.metrics.episodes import round_episodes, trained_episodes
from longboat_runtime.rounds import events
from longboat_runtime.rounds.episodes import (
    EpisodeRounds,
    FailedShare,
    failed_share,
    newest,
    nothing_played,
    together,
)
from longboat_runtime.rounds.events import Entry
from longboat_runtime.rounds.records import GroupRecord
from longboat_runtime.samples import LossCause, SampleId
from longboat_runtime.status_fragment import Problems, StatusFragment


class EpisodeOutcomes(Observer):
    """Measures the episodes of each step. Reports environments that fail, while too many of the newest groups are dropped for it.

    Ends the job if all groups of a round are. A job without environments has none.
    """

    watches = (
        events.RoundOpened,
        events.Launched,
        events.Relaunched,
        events.EpisodeStarted,
        events.Lost,
        events.Generated,
        events.Stopped,
        events.GroupDropped,
        events.StepCommitted,
    )

    def __init__(self, context: Context) -> None:
        self._environments: Sequence[EnvironmentSpec] = context.job.spec.environments or ()
        self._source = context.components.source
        self._problems = Problems(context.news)
        self._rounds = EpisodeRounds()
        self._shares: list[FailedShare] = []
        # The field and the words of the last failure of an environment; pods that go are none.
        self._failure: tuple[str, str] = "spec.environments", ""
        self._metrics: dict[str, float] = {}

    def resume(self, restored: Restored) -> None:
        self._view = restored.run_state.view

    def on(self, entry: Entry, before: GroupRecord | None) -> None:
        if not self._environments:
            return
        self._rounds.fold(entry)
        match entry.body:
            case events.Lost(sample=sample, cause=LossCause.ENVIRONMENT, held_up=False, reason=reason):
                self._failure = self._field(sample), f"row {sample.row} of the dataset (from 0 on): {reason}"
            case events.StepCommitted(round=number):
                self._trained(number)

    async def before_commit(self, round_: int, batch: Batch) -> None:
        """Raises SpecProblem if nothing of the round could be played."""
        if not self._environments:
            return
        record = self._view.rounds[round_]
        if nothing_played(record):
            text = f"No group of round {round_} could be played: in each an episode was lost three times. {self._cure}"
            raise SpecProblem(Reason.ENVIRONMENT_ERRORS, self._failure[0], text)
        self._metrics |= trained_episodes([*batch.records.values()])
        self._metrics["environment/held_up_groups"] = float(record.deferred.get(events.DeferReason.HELD_UP, 0))

    async def metrics(self, step: int) -> Mapping[str, float]:
        metrics, self._metrics = self._metrics, {}
        return metrics

    def status(self) -> StatusFragment:
        return StatusFragment(problems=self._problems.present)

    def _trained(self, number: int) -> None:
        """Measures a round that has been trained, and judges the newest ones."""
        round_ = self._rounds.trained(number)
        domains = {prompt: self._source.domain(prompt.row) for prompt in round_.fates}
        self._metrics |= round_episodes(round_, domains)
        self._shares = newest([*self._shares, failed_share(round_)])
        share = together(self._shares)
        text = (
            f"{share.failed} of the last {share.groups} groups were dropped, since an episode of each was lost three times, which biases the "
            f"data. {self._cure}"
        )
        self._problems.set(Reason.ENVIRONMENT_ERRORS, self._failure[0], text, share.too_many)

    @property
    def _cure(self) -> str:
        """Says what failed last, and what to do about it."""
        _, last = self._failure
        if not last:
            return "No environment has failed since the driver started: pods that played them went, or their containers. Look at these pods."
        return f"The last failure was with {last}. Correct the environment, or the rows that it fails with."

    def _field(self, sample: SampleId) -> str:
        environment = environment_of(self._environments, self._source.domain(sample.row))
        return (
            "spec.environments"
            if environment is None
            else f"spec.environments[{self._environments.index(environment)}]"
        )
