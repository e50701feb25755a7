"""Partial rollout: a round ends with its first complete prompts, and the unfinished ones continue in the next round. Pure.

Source: Kimi k1.5, "partial rollouts" (arXiv:2501.12599, section 2.6.2), and APRIL (arXiv:2509.18521), which overcommits to end
rounds early. Differs in that whole groups are carried, so that no response of a group is preferred for being short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import Event
from longboat_runtime.rounds.policy import Decision, Launch
from longboat_runtime.rounds.records import RoundRecord
from longboat_runtime.rounds.rules import (
    adopt,
    judge_racing,
    losers,
    may_draw,
    next_round,
    next_work,
    overcommitted,
    places,
    relaunch_lost,
)
from longboat_runtime.rounds.view import View


@dataclass(frozen=True, slots=True)
class ContinueUnfinished:
    """A round has `prompt_overcommit` times `prompts_per_round` groups: first the groups carried from earlier rounds, then new ones.

    It trains the first `prompts_per_round` groups to be complete. The others are carried: their unfinished responses are paused
    with their tokens, and resume in the next round under its weights. So nothing is discarded or drawn again for being slow, and a response
    may have tokens of several versions. No more groups are carried than the remaining rounds can take. So none is left at the end, unless
    an edit brings it forward.

    With `drop_zero_variance` the first complete groups with unequal rewards are kept. A group with a grader error is dropped
    and not replaced.
    """

    prompts_per_round: int
    group_size: int
    prompt_overcommit: float
    drop_zero_variance: bool = False

    def decide(self, view: View, event: Event) -> Sequence[Decision]:
        round_ = next(iter(view.rounds.values()), None)
        if round_ and (answer := self._answer(view, round_, event.body)):
            return [answer]
        if work := next_work(view):
            return work
        if view.serving != view.step:
            return []
        if round_ is None:
            return [next_round(view)] if view.step < view.steps else []
        if again := relaunch_lost(view):
            return again
        return self._settle(view, round_) if round_.open else []

    def _answer(self, view: View, round_: RoundRecord, body: events.Body) -> Decision | None:
        """Answers events that are reported only once, even while no weights serve; None if nothing follows, and for all others."""
        match body:
            case events.Graded(sample=sample):
                wanted = places(round_, self.prompts_per_round)
                return judge_racing(view, round_, sample.prompt, wanted, drop_zero_variance=self.drop_zero_variance)
            case events.Paused(sample=sample) if sample.prompt in round_.groups:
                record = view.sample(sample)
                return events.Resumed((sample,)) if record and record.resumable else None
        return None

    def _settle(self, view: View, round_: RoundRecord) -> Sequence[Decision]:
        """Fills the round, ends the race once it is decided, and closes the round once every group is decided."""
        if not round_.launched and not round_.adopted:
            return self._fill(view, round_)
        missing = places(round_, self.prompts_per_round) - len(round_.groups)
        if missing > 0 and may_draw(round_, self.prompts_per_round):
            return [self._launch(view, round_, missing)]
        if unfinished := losers(
            view, round_, places(round_, self.prompts_per_round), drop_zero_variance=self.drop_zero_variance
        ):
            return [events.GroupCarried(group.prompt, group.attempt) for group in unfinished]
        return [] if round_.undecided else [events.RoundClosed(round_.number)]

    def _fill(self, view: View, round_: RoundRecord) -> list[Decision]:
        """Fills the round: with carried groups, oldest first, then with new ones."""
        rest = self.prompts_per_round * (view.steps - view.step)
        count = min(overcommitted(self.prompts_per_round, self.prompt_overcommit, view.short_rounds), rest)
        carried = list(islice(view.carried, count))
        adopted = adopt(
            view, round_.number, carried, self.prompts_per_round, drop_zero_variance=self.drop_zero_variance
        )
        return [*adopted, self._launch(view, round_, count - len(carried))] if len(carried) < count else adopted

    def _launch(self, view: View, round_: RoundRecord, count: int) -> Launch:
        queued = tuple(islice(view.queue, count))
        return Launch(round_.number, self.group_size, queued, count - len(queued))
