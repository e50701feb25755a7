"""What the decisions of a policy record. Pure, given the prompts that a launch draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from longboat_runtime.rounds import events
from longboat_runtime.rounds.policy import (
    Abort,
    Action,
    Adopt,
    Carry,
    Close,
    Defer,
    Drop,
    Keep,
    Launch,
    Open,
    Publish,
    Relaunch,
    Resume,
    Train,
)
from longboat_runtime.rounds.records import State
from longboat_runtime.rounds.view import GroupView, View
from longboat_runtime.samples import PromptId, SampleId


class PolicyError(Exception):
    """A policy decided what the ledger's state doesn't allow: a mistake in the policy."""


def bodies(view: View, action: Action, draw: Callable[[int, str], Sequence[PromptId]]) -> Iterator[events.Body]:
    """Events that carrying out `action` begins with, in order.

    `draw(n, domain)` takes the next n prompts of a domain, or of all where it is empty. Each event is applied before the next
    one is asked for. Raises PolicyError if the action names a group that is not live, or opens a round while nothing serves.
    """
    match action:
        case Open(kind=kind, racing=racing):
            if view.serving is None:
                raise PolicyError("a round was opened while no weights serve")
            yield events.RoundOpened(view.last_round + 1, kind, view.serving, racing)
        case Launch(round=number, samples=samples, queued=queued, fresh=fresh, domain=domain):
            drawn = tuple(draw(fresh, domain)) if fresh else ()
            if drawn:
                yield events.Drawn(view.drawn, drawn, domain)
            for prompt in (*queued, *drawn):
                yield events.Launched(number, prompt, view.queue.get(prompt, -1), samples)
        case Relaunch(sample=sample):
            yield events.Relaunched(sample)
        case Abort(samples=stopped):
            yield events.Aborted(stopped)
        case Carry(prompt=prompt):
            yield events.GroupCarried(prompt, _live(view, prompt).attempt)
        case Adopt(round=number, prompt=prompt):
            group = _live(view, prompt)
            yield events.GroupAdopted(number, prompt, group.attempt)
            if paused := tuple(i for i, r in zip(group.sample_ids, group.samples, strict=True) if r.resumable):
                yield events.Resumed(paused)
        case Resume(samples=resumed):
            yield events.Resumed(resumed)
        case Keep(prompt=prompt):
            yield events.GroupKept(prompt, _live(view, prompt).attempt)
        case Defer(prompt=prompt, reason=deferred):
            yield events.GroupDeferred(prompt, _live(view, prompt).attempt, deferred)
        case Drop(prompt=prompt, reason=dropped):
            yield events.GroupDropped(prompt, _live(view, prompt).attempt, dropped)
        case Close(round=number):
            yield events.RoundClosed(number)
        case Train(round=number):
            yield events.StepStarted(view.step + 1, number)
        case Publish(version=version):
            yield events.PublishStarted(version)


def stopped_by(view: View, action: Action) -> list[SampleId]:
    """Samples that engines still make and that `action` (not carried out yet) makes useless."""
    match action:
        case Abort(samples=samples):
            return [s for s in samples if (record := view.sample(s)) and record.state is State.RUNNING]
        case Defer(prompt=prompt) | Drop(prompt=prompt):
            return _running(_live(view, prompt))
    return []


def paused_by(view: View, action: Action) -> list[SampleId]:
    """Samples that engines still make and that `action` (not carried out yet) has go on later, behind the tokens they have."""
    return _running(_live(view, action.prompt)) if isinstance(action, Carry) else []


def _running(group: GroupView) -> list[SampleId]:
    return [i for i, r in zip(group.sample_ids, group.samples, strict=True) if r.state is State.RUNNING]


def _live(view: View, prompt: PromptId) -> GroupView:
    group = view.group(prompt)
    if group is None:
        raise PolicyError(f"{prompt} has no live group")
    return group
