"""Policies that exist to show what the ledger and the driver allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import DeferReason, DropReason, Event
from longboat_runtime.rounds.policy import Abort, Action, Close, Defer, Drop, Keep, Launch, Open, Publish, Train
from longboat_runtime.rounds.records import RoundState, State
from longboat_runtime.rounds.recovery import recover
from longboat_runtime.rounds.view import GroupView, RoundView, View


def judge(group: GroupView | None) -> Action | None:
    if group is None:
        return None
    if group.errors:
        return Drop(group.prompt, DropReason.GRADER_ERROR)
    return Keep(group.prompt) if group.rewarded and group.state is not State.KEPT else None


@dataclass(frozen=True)
class Racing:
    """Launches one prompt and one sample a group too many; the first groups to be filled win, the others are deferred."""

    steps: int
    prompts_per_round: int
    group_size: int

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        if view.serving != view.step:
            return [Publish(view.step)] if view.publishing is None else []
        round_ = next(iter(view.rounds.values()), None)
        if round_ is None:
            return [Open()] if view.step < self.steps else []
        if actions := recover(view):
            return actions
        if round_.state is not RoundState.OPEN:
            verdict = judge(view.group(event.body.sample.prompt)) if isinstance(event.body, events.Graded) else None
            return [verdict] if verdict else [Train(round_.number)] * round_.trainable
        if missing := self.prompts_per_round + 1 - round_.launched:
            queued = tuple(view.queue)[:missing]
            return [Launch(round_.number, self.group_size + 1, queued, missing - len(queued))]
        return self._stop_surplus(view, round_) or self._choose(view, round_)

    def _stop_surplus(self, view: View, round_: RoundView) -> list[Action]:
        for group in map(view.group, round_.completed):
            ids = zip(group.sample_ids, group.samples, strict=True)
            running = tuple(i for i, s in ids if s.state is State.RUNNING and not s.counts)
            if running:
                return [Abort(running)]
        return []

    def _choose(self, view: View, round_: RoundView) -> list[Action]:
        """The first P groups by the number of the event that filled them, skipping those that graders failed on."""
        for prompt in round_.groups:
            if view.group(prompt).errors:
                return [Drop(prompt, DropReason.GRADER_ERROR)]
        winners = list(round_.completed)[: self.prompts_per_round]
        for prompt in winners:
            if verdict := judge(view.group(prompt)):
                return [verdict]
        filled = len(winners) == min(self.prompts_per_round, len(round_.groups))
        if not filled or any(prompt not in round_.kept for prompt in winners):
            return []
        losers = [p for p in round_.groups if p not in round_.kept]
        return [*(Defer(p, DeferReason.TOO_LONG) for p in losers), Close(round_.number)]
