"""Bounded asynchrony: rollout runs ahead of training by a bounded number of weight versions. Pure.

Source: AReaL (arXiv:2505.24298), whose rollout continues while the trainer works and switches to new weights in mid-response.
Differs in what is bounded: the age of every token, through the time at which rounds open, not the mean over a buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import Event
from longboat_runtime.rounds.policy import Decision
from longboat_runtime.rounds.rules import judge, next_round, next_work, opened_steps, relaunch_lost, settle_whole
from longboat_runtime.rounds.view import View


@dataclass(frozen=True, slots=True)
class BoundedAsync:
    """Keeps up to `max_staleness` + 1 rounds under way, each like a round of the synchronous policy; steps train them in order.

    The bound: step s trains on the weights of version s - 1, so the round that feeds it opens once version
    s - 1 - `max_staleness` serves. No token of a round is drawn before it opens and versions only increase, so no token is
    older than that at its step. Responses that run while weights are published continue with the new weights.

    Nothing races: unless dropped groups are replaced, a round keeps the same prompts whatever the order in which samples finish.
    """

    prompts_per_round: int
    group_size: int
    max_staleness: int
    drop_zero_variance: bool = False

    def decide(self, view: View, event: Event) -> Sequence[Decision]:
        match event.body:
            # A grade is reported only once, so it is answered whether or not weights serve.
            case events.Graded(sample=sample) if judged := judge(
                view.groups.get(sample.prompt), drop_zero_variance=self.drop_zero_variance
            ):
                return [judged]
        if work := next_work(view):
            return work
        if view.serving is None:
            return []
        if again := relaunch_lost(view):
            return again
        for round_ in view.open_rounds():
            if decisions := settle_whole(
                view, round_, self.prompts_per_round, self.group_size, drop_zero_variance=self.drop_zero_variance
            ):
                return decisions
        return [next_round(view)] if self._may_open(view) else []

    def _may_open(self, view: View) -> bool:
        if view.serving is None or opened_steps(view) >= view.steps:
            return False
        return opened_steps(view) - view.serving <= self.max_staleness
