"""Policies that exist only to test what the ledger and the driver allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import DeferReason, DropReason, Event
from longboat_runtime.rounds.policy import Decision, Launch
from longboat_runtime.rounds.records import GroupRecord, RoundRecord, RoundState, SampleState
from longboat_runtime.rounds.rules import deferred, dropped, next_round, publication, recover
from longboat_runtime.rounds.view import View


def judge(group: GroupRecord | None) -> Decision | None:
    if group is None:
        return None
    if group.errors:
        return dropped(group, DropReason.GRADER_ERROR)
    complete = group.rewarded and group.state is not SampleState.KEPT
    return events.GroupKept(group.prompt, group.attempt) if complete else None


@dataclass(frozen=True)
class Racing:
    """Launches one prompt too many, and one sample too many per group; the first complete groups win, the others are deferred."""

    prompts_per_round: int
    group_size: int

    def decide(self, view: View, event: Event) -> Sequence[Decision]:
        if view.serving != view.step:
            return publication(view)
        round_ = next(iter(view.rounds.values()), None)
        if round_ is None:
            return [next_round(view)] if view.step < view.steps else []
        if decisions := recover(view):
            return decisions
        if round_.state is not RoundState.OPEN:
            verdict = (
                judge(view.groups.get(event.body.sample.prompt)) if isinstance(event.body, events.Graded) else None
            )
            return [verdict] if verdict else [events.StepStarted(view.step + 1, round_.number)] * round_.trainable
        if missing := self.prompts_per_round + 1 - round_.launched:
            queued = tuple(view.queue)[:missing]
            return [Launch(round_.number, self.group_size + 1, queued, missing - len(queued))]
        return self._stop_surplus(view, round_) or self._choose(view, round_)

    def _stop_surplus(self, view: View, round_: RoundRecord) -> list[Decision]:
        for group in map(view.groups.get, round_.completed):
            ids = zip(group.sample_ids, group.samples, strict=True)
            running = tuple(i for i, s in ids if s.state is SampleState.RUNNING and not s.counts)
            if running:
                return [events.Aborted(running)]
        return []

    def _choose(self, view: View, round_: RoundRecord) -> list[Decision]:
        """Keeps the first P groups by the number of the event that completed them, skipping groups with grader errors."""
        for prompt in round_.groups:
            if view.groups[prompt].errors:
                return [dropped(view.groups[prompt], DropReason.GRADER_ERROR)]
        winners = list(round_.completed)[: self.prompts_per_round]
        for prompt in winners:
            if verdict := judge(view.groups.get(prompt)):
                return [verdict]
        filled = len(winners) == min(self.prompts_per_round, len(round_.groups))
        if not filled or any(prompt not in round_.kept for prompt in winners):
            return []
        losers = [view.groups[p] for p in round_.groups if p not in round_.kept]
        return [*(deferred(group, DeferReason.TOO_LONG) for group in losers), events.RoundClosed(round_.number)]
