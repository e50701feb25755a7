"""What becomes of lost samples. Pure."""

from __future__ import annotations

from longboat_runtime.rounds.events import DeferReason, DropReason
from longboat_runtime.rounds.policy import Action, Defer, Drop, Relaunch
from longboat_runtime.rounds.records import RoundState
from longboat_runtime.rounds.view import View
from longboat_runtime.samples import PromptId, SampleId

# A sample is made again after an engine has died with it, until so many have. The same seed on the same weights draws the same
# tokens, so what kills one engine kills the next; three is more than chance brings upon one sample.
MOST_ENGINE_DEATHS = 3


def recover(view: View) -> list[Action]:
    """On-policy, lost samples are made again if the weights that began their round still serve; else their group is deferred.

    The same seed on the same weights gives the same tokens, so a relaunch changes nothing about what is learned; on other
    weights it would mix versions within a group, so the prompt is queued for a new attempt. While nothing serves (between a
    driver's start and its first publication) samples stay lost; so do those of a batch that is being trained, since the
    trainer may have read them before. The group of a sample that `MOST_ENGINE_DEATHS` engines died with is dropped.
    """
    if view.serving is None:
        return []
    actions: list[Action] = []
    given_up: set[PromptId] = set()
    for sample in view.lost:
        group = view.group(sample.prompt)
        if group is None or sample.prompt in given_up:
            continue
        round_ = view.rounds[group.round]
        if round_.state is RoundState.TRAINING:
            continue
        if _kills_engines(view, sample):
            given_up.add(sample.prompt)
            actions.append(Drop(sample.prompt, DropReason.ENGINE_DEATHS))
        elif round_.version == view.serving:
            actions.append(Relaunch(sample))
        else:
            given_up.add(sample.prompt)
            actions.append(Defer(sample.prompt, DeferReason.VERSION_GONE))
    return actions


def make_again(view: View) -> list[Action]:
    """Where a batch may have several versions, lost samples are made again on whatever serves: from their start, with their seed.

    They stay lost while nothing serves, in a batch that is being trained, and in a carried group until a round adopts it. The
    group of a sample that `MOST_ENGINE_DEATHS` engines died with is dropped.
    """
    if view.serving is None:
        return []
    needed = [sample for sample in view.lost if _is_needed(view, sample)]
    dropped = {sample.prompt: None for sample in needed if _kills_engines(view, sample)}
    relaunched = [Relaunch(sample) for sample in needed if sample.prompt not in dropped]
    return [*(Drop(prompt, DropReason.ENGINE_DEATHS) for prompt in dropped), *relaunched]


def _kills_engines(view: View, sample: SampleId) -> bool:
    record = view.sample(sample)
    return record is not None and record.engine_deaths >= MOST_ENGINE_DEATHS


def _is_needed(view: View, sample: SampleId) -> bool:
    group = view.group(sample.prompt)
    if group is None or sample.prompt in view.carried:
        return False
    return view.rounds[group.round].state is not RoundState.TRAINING
