"""The synchronous policy: one round at a time, every response waited for, strictly on-policy. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import DropReason, RoundKind
from longboat_runtime.rounds.judging import judge
from longboat_runtime.rounds.on_policy import OnPolicy
from longboat_runtime.rounds.policy import Action, Close, Launch
from longboat_runtime.rounds.view import RoundView, View

# With dropZeroVariance a round draws new prompts for dropped groups until it has drawn so many times `promptsPerRound`, and
# then trains smaller: DAPO's dynamic sampling with the bound of verl's recipe (`max_num_gen_batches: 10`).
MAX_DRAWS_PER_ROUND = 10


@dataclass(frozen=True, slots=True)
class Synchronous(OnPolicy):
    """Launches `prompts_per_round` groups of exactly `group_size` samples, waits for all of them, trains, publishes, repeats.

    Nothing races: what a round keeps depends on prompts, seeds and rewards, never on the order in which samples finish.
    A group with a grader error is dropped and not replaced, so the batch trains smaller against the same denominator; with
    `drop_zero_variance` a group of equal rewards is dropped and replaced by the next prompt. How many are replaced
    depends only on how many of the drawn prompts were dropped, so the order of grading doesn't matter either.
    """

    drop_zero_variance: bool = False

    def _kind(self, view: View) -> RoundKind:
        return RoundKind.SHORT

    def _answer(self, view: View, round_: RoundView, body: events.Body) -> Action | None:
        match body:
            case events.Graded(sample=sample):
                return judge(view.group(sample.prompt), drop_zero_variance=self.drop_zero_variance)
        return None

    def _settle(self, view: View, round_: RoundView) -> Sequence[Action]:
        """Fills the round, and closes it once every group is decided."""
        if missing := self._missing(round_):
            queued = tuple(islice(view.queue, missing))
            return [Launch(round_.number, self.group_size, queued, missing - len(queued))]
        return [] if round_.undecided else [Close(round_.number)]

    def _missing(self, round_: RoundView) -> int:
        """Prompts to launch: those of the round and one for each dropped for zero variance, less those that were launched."""
        wanted = self.prompts_per_round
        if self.drop_zero_variance:
            redrawn = wanted + round_.dropped.get(DropReason.ZERO_VARIANCE, 0)
            wanted = min(redrawn, wanted * MAX_DRAWS_PER_ROUND)
        return wanted - (round_.launched - sum(round_.deferred.values()))
