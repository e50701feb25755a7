"""What becomes of lost samples. Pure."""

from __future__ import annotations

from longboat_runtime.rounds.events import DeferReason
from longboat_runtime.rounds.policy import Action, Defer, Relaunch
from longboat_runtime.rounds.records import RoundState
from longboat_runtime.rounds.view import View
from longboat_runtime.samples import PromptId, SampleId


def recover(view: View) -> list[Action]:
    """On-policy, lost samples are made again if the weights that began their round still serve; else their group is deferred.

    The same seed on the same weights gives the same tokens, so a relaunch changes nothing about what is learned; on other
    weights it would mix versions within a group, so the prompt is queued for a new attempt. While nothing serves (between a
    driver's start and its first publication) samples stay lost; so do those of a batch that is being trained, since the
    trainer may have read them before.
    """
    if view.serving is None:
        return []
    actions: list[Action] = []
    deferred: set[PromptId] = set()
    for sample in view.lost:
        group = view.group(sample.prompt)
        if group is None or sample.prompt in deferred:
            continue
        round_ = view.rounds[group.round]
        if round_.state is RoundState.TRAINING:
            continue
        if round_.version == view.serving:
            actions.append(Relaunch(sample))
        else:
            deferred.add(sample.prompt)
            actions.append(Defer(sample.prompt, DeferReason.VERSION_GONE))
    return actions


def make_again(view: View) -> list[Action]:
    """Where a batch may have several versions, lost samples are made again on whatever serves: from their start, with their seed.

    They stay lost while nothing serves, in a batch that is being trained, and in a carried group until a round adopts it.
    """
    if view.serving is None:
        return []
    return [Relaunch(sample) for sample in view.lost if _is_needed(view, sample)]


def _is_needed(view: View, sample: SampleId) -> bool:
    group = view.group(sample.prompt)
    if group is None or sample.prompt in view.carried:
        return False
    return view.rounds[group.round].state is not RoundState.TRAINING
