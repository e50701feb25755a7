"""Rules that several policies have in common. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import islice

from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import NOT_REPLACED, DeferReason, DropReason, RoundKind
from longboat_runtime.rounds.policy import Decision, Launch, PolicyError
from longboat_runtime.rounds.records import GroupRecord, PartRecord, RoundState, SampleState
from longboat_runtime.rounds.view import View
from longboat_runtime.samples import PromptId, SampleId

# With dropZeroVariance a round draws new prompts for dropped groups until it has drawn so many times `promptsPerRound`, and
# then trains smaller: DAPO's dynamic sampling with the bound of verl's recipe (`max_num_gen_batches: 10`).
MAX_DRAWS_PER_ROUND = 10
# A sample is made again after an engine has died with it, until so many have. The same seed on the same weights draws the same
# tokens, so what kills one engine kills the next; three is more than chance brings upon one sample.
MOST_ENGINE_DEATHS = 3


# --- Rounds and steps ---------------------------------------------------------------------------------------------


def next_round(view: View, kind: RoundKind = RoundKind.SHORT, *, racing: bool = False) -> events.RoundOpened:
    """The next round, on the weights that serve. Raises PolicyError while none do."""
    if view.serving is None:
        raise PolicyError("a round was opened while no weights serve")
    return events.RoundOpened(view.last_round + 1, kind, view.serving, racing)


def publication(view: View) -> list[Decision]:
    """The weights of the last step are published, unless some are being published already."""
    return [events.PublishStarted(view.step)] if view.publishing is None else []


def next_work(view: View) -> list[Decision]:
    """What the trainer can do next, rounds in the order in which they were opened, each step on the published weights of the one before.

    It publishes the last step, else makes one from the oldest round once that is closed. Where an edit of the spec has lowered the
    number of steps, rounds beyond it are left as they are.
    """
    if view.serving != view.step:
        return publication(view)
    oldest = next(iter(view.rounds.values()), None)
    if oldest is None or not oldest.trainable or view.step >= view.steps:
        return []
    return [events.StepStarted(view.step + 1, oldest.number)]


def opened_steps(view: View) -> int:
    """The step that the youngest round feeds, or fed."""
    return view.step + len(view.rounds)


# --- Launches -----------------------------------------------------------------------------------------------------


def overcommitted(prompts: int, factor: float, ordinal: int, phase: Fraction = Fraction(0)) -> int:
    """Prompts of the race number `ordinal`: the whole ones of an even flow, whose fractions are carried on.

    `phase`, in [0, 1), is what has been carried to the first race. It never takes anything from a later one: after n races the flow
    has brought n x `factor` x `prompts`, rounded down, or one more.
    """
    flow = Fraction(str(factor)) * prompts
    return int(flow * ordinal + phase) - int(flow * (ordinal - 1) + phase)


def phases(count: int) -> list[Fraction]:
    """Phases of so many flows beside each other (quotas of domains) that bring their extra prompts in turn, not all in one race.

    The first is 0, so that it is never ahead: once it has brought a quota of extra prompts, every other flow has too.
    """
    return [Fraction(number, count) for number in range(count)]


def settle_whole(
    view: View, part: PartRecord, prompts: int, group_size: int, *, drop_zero_variance: bool
) -> Sequence[Decision]:
    """Fills an open round with `prompts` groups of `group_size` responses, waits for all, and closes it once every group is decided.

    With `drop_zero_variance` each group that was dropped for that is replaced, within MAX_DRAWS_PER_ROUND.
    """
    wanted = prompts
    if drop_zero_variance:
        wanted = min(prompts + part.dropped.get(DropReason.ZERO_VARIANCE, 0), prompts * MAX_DRAWS_PER_ROUND)
    if missing := wanted - (part.launched - sum(part.deferred.values())):
        queued = tuple(islice(view.queue, missing))
        return [Launch(part.number, group_size, queued, missing - len(queued))]
    return [] if part.undecided else [events.RoundClosed(part.number)]


# --- What becomes of a group --------------------------------------------------------------------------------------


def dropped(group: GroupRecord, reason: DropReason) -> events.GroupDropped:
    """The prompt is given up for this epoch."""
    return events.GroupDropped(group.prompt, group.attempt, reason)


def deferred(group: GroupRecord, reason: DeferReason) -> events.GroupDeferred:
    """This attempt is given up, and the prompt queued for another one."""
    return events.GroupDeferred(group.prompt, group.attempt, reason)


def judge(group: GroupRecord | None, *, drop_zero_variance: bool) -> events.GroupKept | events.GroupDropped | None:
    """Keeps a group once all of it is graded; drops it for a grader error, or for equal rewards where that is asked for."""
    if group is None:
        return None
    if group.errors:
        return dropped(group, DropReason.GRADER_ERROR)
    if not group.rewarded or group.state is SampleState.KEPT:
        return None
    if drop_zero_variance and group.zero_variance:
        return dropped(group, DropReason.ZERO_VARIANCE)
    return events.GroupKept(group.prompt, group.attempt)


def off_version(view: View, sample: SampleId) -> bool:
    """The sample has tokens of other weights than its round's."""
    group, record = view.groups.get(sample.prompt), view.sample(sample)
    if group is None or record is None:
        return False
    version = view.rounds[group.round].version
    return any(span.version != version for span in record.spans)


# --- Races: the first groups that are complete count --------------------------------------------------------------
# What a round keeps depends on the order in which responses are generated, never on when they are graded.


def places(part: PartRecord, prompts: int) -> int:
    """Groups that a race for `prompts` of them still can train: some that are dropped are not replaced."""
    return prompts - sum(part.dropped.get(reason, 0) for reason in NOT_REPLACED)


def may_draw(part: PartRecord, prompts: int) -> bool:
    """Dynamic sampling ends: see MAX_DRAWS_PER_ROUND."""
    return part.dropped.get(DropReason.ZERO_VARIANCE, 0) <= prompts * (MAX_DRAWS_PER_ROUND - 1)


def judge_racing(
    view: View, part: PartRecord, prompt: PromptId, wanted: int, *, drop_zero_variance: bool
) -> events.GroupKept | events.GroupDropped | None:
    """What becomes of groups of the round now that one of this prompt was graded.

    Only complete groups are judged. With `drop_zero_variance` those beyond the first `wanted` wait for an earlier one to be dropped.
    """
    group = view.groups.get(prompt)
    if group is None:
        # It was dropped a moment ago, so another one may count.
        prompts = islice(part.completed, wanted)
        judged = (judge_complete(view.groups.get(prompt), drop_zero_variance=drop_zero_variance) for prompt in prompts)
        return next((found for found in judged if found), None)
    if group.round != part.number or prompt not in part.groups:
        return None
    chosen = group.state is SampleState.KEPT or not drop_zero_variance or prompt in islice(part.completed, wanted)
    return judge_complete(group, drop_zero_variance=drop_zero_variance) if chosen else None


def judge_complete(
    group: GroupRecord | None, *, drop_zero_variance: bool
) -> events.GroupKept | events.GroupDropped | None:
    """What becomes of a complete group by itself; None for another one."""
    complete = group is not None and group.completed is not None
    return judge(group, drop_zero_variance=drop_zero_variance) if complete else None


def losers(view: View, part: PartRecord, wanted: int, *, drop_zero_variance: bool) -> list[GroupRecord]:
    """Groups that the round goes on without, once the first `wanted` are complete (kept, with `drop_zero_variance`); else none."""
    finished = part.kept if drop_zero_variance else part.completed
    if len(part.groups) <= wanted or len(finished) < wanted:
        return []
    winners = set(islice(finished, wanted))
    return [view.groups[prompt] for prompt in part.groups if prompt not in winners]


# --- Groups that one round leaves to a later one ------------------------------------------------------------------


def adopt(
    view: View, number: int, prompts: Iterable[PromptId], wanted: int, *, drop_zero_variance: bool
) -> list[Decision]:
    """Round `number` adopts these carried groups in this order; no other group of the round may be complete before them.

    A group may have been finished and graded while it waited. No event will say so again: among the first `wanted` complete
    ones it is judged here.
    """
    decisions: list[Decision] = []
    complete = 0
    for group in (view.groups[prompt] for prompt in prompts):
        decisions.append(events.GroupAdopted(number, group.prompt, group.attempt))
        if paused := tuple(group.sample_id(record.index) for record in group.samples if record.resumable):
            decisions.append(events.Resumed(paused))
        if group.completed is None or complete >= wanted:
            continue
        judged = judge_complete(group, drop_zero_variance=drop_zero_variance)
        if judged:
            decisions.append(judged)
        if not isinstance(judged, events.GroupDropped):
            complete += 1
        elif judged.reason in NOT_REPLACED:
            wanted -= 1
    return decisions


# --- Lost samples -------------------------------------------------------------------------------------------------


def recover(view: View) -> list[Decision]:
    """On-policy, lost samples are made again if the weights that began their round still serve; else their group is deferred.

    The same seed on the same weights gives the same tokens, so a relaunch changes nothing about what is learned; on other
    weights it would mix versions within a group, so the prompt is queued for a new attempt. While nothing serves (between a
    driver's start and its first publication) samples stay lost; so do those of a batch that is being trained, since the
    trainer may have read them before. The group of a sample that `MOST_ENGINE_DEATHS` engines died with is dropped.
    """
    if view.serving is None:
        return []
    decisions: list[Decision] = []
    given_up: set[PromptId] = set()
    for sample in view.lost:
        group = view.groups[sample.prompt]
        if sample.prompt in given_up:
            continue
        round_ = view.rounds[group.round]
        if round_.state is RoundState.TRAINING:
            continue
        if _kills_engines(view, sample):
            given_up.add(sample.prompt)
            decisions.append(dropped(group, DropReason.ENGINE_DEATHS))
        elif round_.version == view.serving:
            decisions.append(events.Relaunched(sample))
        else:
            given_up.add(sample.prompt)
            decisions.append(deferred(group, DeferReason.VERSION_GONE))
    return decisions


def make_again(view: View) -> list[Decision]:
    """Where a batch may have several versions, lost samples are made again on whatever serves: from their start, with their seed.

    They stay lost while nothing serves, in a batch that is being trained, and in a carried group until a round adopts it. The
    group of a sample that `MOST_ENGINE_DEATHS` engines died with is dropped.
    """
    if view.serving is None:
        return []
    needed = [sample for sample in view.lost if _is_needed(view, sample)]
    killers = {sample.prompt: view.groups[sample.prompt] for sample in needed if _kills_engines(view, sample)}
    relaunched = [events.Relaunched(sample) for sample in needed if sample.prompt not in killers]
    return [*(dropped(group, DropReason.ENGINE_DEATHS) for group in killers.values()), *relaunched]


def _kills_engines(view: View, sample: SampleId) -> bool:
    record = view.sample(sample)
    return record is not None and record.engine_deaths >= MOST_ENGINE_DEATHS


def _is_needed(view: View, sample: SampleId) -> bool:
    if sample.prompt in view.carried:
        return False
    return view.rounds[view.groups[sample.prompt].round].state is not RoundState.TRAINING
