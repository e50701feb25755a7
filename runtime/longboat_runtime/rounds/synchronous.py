"""The synchronous policy: one round at a time, waits for every response, strictly on-policy. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longboat_runtime.rounds import events
from longboat_runtime.rounds.on_policy import OneQuota
from longboat_runtime.rounds.policy import Decision
from longboat_runtime.rounds.records import PartRecord
from longboat_runtime.rounds.rules import judge, settle_whole
from longboat_runtime.rounds.view import View


@dataclass(frozen=True, slots=True)
class Synchronous(OneQuota):
    """Launches `prompts_per_round` groups of exactly `group_size` samples, waits for all of them, trains, publishes, repeats.

    Nothing races: what a round keeps depends on prompts, seeds and rewards, never on the order in which samples finish.
    A group with a grader error is dropped and not replaced, so the batch is smaller, against the same denominator; with
    `drop_zero_variance` a group of equal rewards is dropped and replaced by the next prompt. How many are replaced
    depends only on how many of the drawn prompts were dropped, so the order of grading doesn't matter either.
    """

    drop_zero_variance: bool = False

    def answer(self, view: View, part: PartRecord, body: events.Body) -> Decision | None:
        match body:
            case events.Graded(sample=sample):
                return judge(view.groups.get(sample.prompt), drop_zero_variance=self.drop_zero_variance)
        return None

    def settle(self, view: View, part: PartRecord, body: events.Body) -> Sequence[Decision]:
        """Fills the quota, and lets the round end once every group is decided."""
        return settle_whole(
            view, part, self.prompts_per_round, self.group_size, drop_zero_variance=self.drop_zero_variance
        )
