"""Tail batching: short rounds that leave out the slowest prompts, and rare long rounds that train them. Strictly on-policy. Pure.

Source: RollPacker, "tail batching" (arXiv:2509.21009). Differs where RollPacker loses or biases data: prompts and samples are
overcommitted independently, a prompt is complete when its responses are generated rather than graded, fractions of a prompt are
carried from round to round, and the end of a run drains the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from math import ceil

from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import DeferReason
from longboat_runtime.rounds.on_policy import OneQuota
from longboat_runtime.rounds.policy import Decision, Launch
from longboat_runtime.rounds.records import GroupRecord, PartRecord, SampleState
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.rounds.rules import deferred, judge_racing, losers, may_draw, overcommitted, places, reached
from longboat_runtime.rounds.view import View
from longboat_runtime.samples import PromptId, SampleId


@dataclass(frozen=True, slots=True)
class TailBatching(OneQuota):
    """Trains `prompts_per_round` prompts a step, `group_size` responses each.

    A short round launches `prompt_overcommit` times as many fresh prompts with `sample_overcommit` times as many responses; the
    first prompts to be complete are kept, the others deferred. Once a round's worth of prompts is deferred, they make a long round:
    nothing races, every response is waited for, and the prompts with the longest abandoned attempts are launched first, so that
    the responses that may take longest never wait for room in an engine. So a long round follows every
    1 / (prompt_overcommit - 1) short ones.

    What a round keeps depends on the order in which responses are generated, never on when they are graded. With
    `drop_zero_variance` the first complete groups with unequal rewards are kept, and the race lasts until there are enough of
    them. A group with a grader error is dropped and not replaced. No more prompts are deferred than the remaining rounds can take. So all
    are launched again before the end, unless an edit brings it forward.

    Every `audit_every`-th short round is an audit round: it doesn't race, and so shows the lengths of responses when none is cut
    short. Short rounds don't race while races are suspended either: they are then like synchronous rounds and defer nothing.

    With `episodes` a group that is left out while an episode of it is held up (`GroupRecord.held_up`) is deferred as HELD_UP.

    With a `prompt_overcommit` of 1, prompts are deferred only because of their weights (VERSION_GONE, OFF_VERSION).
    """

    prompt_overcommit: float
    sample_overcommit: float
    drop_zero_variance: bool = False
    audit_every: int | None = None
    phase: Fraction = Fraction(0)
    episodes: bool = False

    def due(self, view: View) -> bool:
        """Whether a whole round's prompts are deferred."""
        return len(view.deferred) >= self.prompts_per_round

    def urgent(self, view: View) -> bool:
        """Whether more prompts are deferred than the rounds after the next one can take, or than two rounds train."""
        return len(view.deferred) > min(self._later_capacity(view), 2 * self.prompts_per_round)

    def racing(self, view: View) -> bool:
        """Whether the next short round races: all do except audit rounds, unless races are suspended."""
        audit = self.audit_every is not None and (view.short_rounds + 1) % self.audit_every == 0
        return not audit and not view.calm_rounds

    def _later_capacity(self, view: View) -> int:
        """Counts the prompts that rounds can train after the next step."""
        return self.prompts_per_round * (view.steps - view.step - 1)

    def answer(self, view: View, part: PartRecord, body: events.Body) -> Decision | None:
        match body:
            case events.Generated(sample=sample) if extra := _running_extras(view.groups.get(sample.prompt)):
                return events.Aborted(extra)
            case events.Graded(sample=sample):
                wanted = places(part, self.prompts_per_round)
                return judge_racing(view, part, sample.prompt, wanted, drop_zero_variance=self.drop_zero_variance)
        return None

    def settle(self, view: View, part: PartRecord, body: events.Body) -> Sequence[Decision]:
        """Launches, ends the race once it is decided, and lets the round end once every group is decided."""
        if not part.launched:
            return [self._first_launch(view, part)]
        wanted, live = places(part, self.prompts_per_round), len(part.groups)
        if live < wanted and may_draw(part, self.prompts_per_round):
            return [self._replacement(view, part, wanted - live)]
        if unfinished := losers(view, part, wanted, drop_zero_variance=self.drop_zero_variance):
            return [deferred(group, self._why(group)) for group in unfinished]
        return [] if part.undecided else [events.RoundClosed(part.number)]

    def _why(self, group: GroupRecord) -> DeferReason:
        return DeferReason.HELD_UP if self.episodes and group.held_up else DeferReason.TOO_LONG

    def _first_launch(self, view: View, part: PartRecord) -> Launch:
        if part.kind is RoundKind.LONG:
            furthest = reached([*islice(view.deferred.values(), self.prompts_per_round)])
            queued = tuple(sorted(furthest, key=lambda prompt: -furthest[prompt]))
            fresh = self._fresh_prompts(view, self.prompts_per_round - len(queued))
            return self._launch(part, (*queued, *fresh), self.prompts_per_round)
        room = self._later_capacity(view) - len(view.deferred)
        wanted = self.prompts_per_round
        if part.racing:
            wanted = overcommitted(self.prompts_per_round, self.prompt_overcommit, view.races, self.phase)
        count = min(wanted, self.prompts_per_round + room)
        return self._launch(part, self._fresh_prompts(view, count), count)

    def _replacement(self, view: View, part: PartRecord, count: int) -> Launch:
        """Replaces groups that were dropped, or given up because of their weights. Long rounds and the last one take deferred prompts."""
        last = view.step + 1 >= view.steps
        queued = tuple(islice(view.deferred, count)) if part.kind is RoundKind.LONG or last else ()
        fresh = self._fresh_prompts(view, count - len(queued))
        return self._launch(part, (*queued, *fresh), count)

    def _fresh_prompts(self, view: View, count: int) -> tuple[PromptId, ...]:
        """Returns at most `count` queued prompts that were never launched, which an earlier driver may have drawn."""
        if len(view.queue) == len(view.deferred):
            return ()
        return tuple(islice((prompt for prompt, attempt in view.queue.items() if attempt == 0), count))

    def _launch(self, part: PartRecord, queued: tuple[PromptId, ...], count: int) -> Launch:
        samples = self.group_size
        if part.racing:
            samples = ceil(Fraction(str(self.sample_overcommit)) * self.group_size)
        return Launch(part.number, samples, queued, count - len(queued))


def _running_extras(group: GroupRecord | None) -> tuple[SampleId, ...]:
    """Returns the responses of a group that still run and don't count; none unless the group is complete."""
    if group is None or group.completed is None:
        return ()
    pairs = zip(group.sample_ids, group.samples, strict=True)
    return tuple(sample for sample, record in pairs if record.state is SampleState.RUNNING and not record.counts)
