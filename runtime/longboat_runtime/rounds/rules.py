"""Rules that several policies share. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from fractions import Fraction
from itertools import islice

from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import NOT_REPLACED, DeferReason, DropReason
from longboat_runtime.rounds.policy import Decision, Launch, PolicyError
from longboat_runtime.rounds.records import GivenUp, GroupRecord, PartRecord, RoundState, SampleState
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.rounds.view import View
from longboat_runtime.samples import PromptId, SampleId

# With dropZeroVariance a round draws new prompts for dropped groups until it has drawn this many times `promptsPerRound`, and
# then trains a smaller batch: DAPO's dynamic sampling with the bound of verl's recipe (`max_num_gen_batches: 10`).
MAX_DRAWS_PER_ROUND = 10
# A sample whose engine died is retried until this many engines have died with it. Retried with its seed it draws the same or similar
# tokens, so a sample that kills one engine is likely to kill the next; three deaths are unlikely to be chance.
MOST_ENGINE_DEATHS = 3
# An episode that its environment or its pod loses is played again until that has happened this often. What its seed and its row decide
# happens each time; three losses for other reasons are unlikely.
MOST_ENVIRONMENT_LOSSES = 3


# --- Rounds and steps ---------------------------------------------------------------------------------------------


def next_round(view: View, kind: RoundKind = RoundKind.SHORT, *, racing: bool = False) -> events.RoundOpened:
    """Opens the next round on the weights that serve. Raises PolicyError while none do."""
    if view.serving is None:
        raise PolicyError("a round was opened while no weights serve")
    return events.RoundOpened(view.last_round + 1, kind, view.serving, racing)


def publication(view: View) -> list[Decision]:
    """Publishes the weights of the last step, unless a publication is under way."""
    return [events.PublishStarted(view.step)] if view.publishing is None else []


def next_work(view: View) -> list[Decision]:
    """Decides what the trainer can do next: rounds train in the order in which they opened, each step on the published weights of the last.

    Publishes the weights of the last step, unless they serve or are being published. Once they serve, it starts a step from the oldest
    round if that is `trainable`. If an edit of the spec has lowered the number of steps, rounds beyond it are left as they are.
    """
    if view.serving != view.step:
        return publication(view)
    oldest = next(iter(view.rounds.values()), None)
    if oldest is None or not oldest.trainable or view.step >= view.steps:
        return []
    return [events.StepStarted(view.step + 1, oldest.number)]


def next_chunk(view: View, least_tokens: int, unscored: Set[str]) -> list[Decision]:
    """Decides what the trainer can do while the next step's round isn't complete: accumulate the gradient of groups that are.

    Once the weights of the last step serve and no chunk is under way, all kept groups of the oldest round that no chunk has make one,
    in the order in which they were completed, if they have `least_tokens` tokens. Left out are groups with a timeout of one of the
    reward functions `unscored`: what that counts is known only with the batch. So are groups of which something is missing.
    """
    oldest = next(iter(view.rounds.values()), None)
    if oldest is None or oldest.streaming or oldest.state is RoundState.TRAINING:
        return []
    if view.serving != view.step or view.step >= view.steps or oldest.waiting_tokens < least_tokens:
        return []
    groups = [view.groups[prompt] for prompt in oldest.kept if prompt not in oldest.streamed]
    ready = [group for group in groups if group.whole and not group.timed_out & unscored]
    if not ready or sum(group.tokens for group in ready) < least_tokens:
        return []
    prompts = tuple(group.prompt for group in sorted(ready, key=lambda group: group.completed or 0))
    return [events.ChunkStarted(view.step + 1, oldest.number, oldest.chunks + 1, prompts)]


def opened_steps(view: View) -> int:
    """Returns the number of the step that the newest round feeds; if no round is left, that of the last committed step."""
    return view.step + len(view.rounds)


# --- Launches -----------------------------------------------------------------------------------------------------


def overcommitted(prompts: int, factor: float, ordinal: int, phase: Fraction = Fraction(0)) -> int:
    """Returns how many prompts race number `ordinal` runs: an even flow in whole prompts, with fractions carried to the next race.

    Races are numbered from 1. `phase`, in [0, 1), is the fraction carried into the first one. It only moves prompts to earlier
    races: n of them together run n x `factor` x `prompts`, rounded down, or one more. Callers take fewer near the job's end.
    """
    flow = Fraction(str(factor)) * prompts
    return int(flow * ordinal + phase) - int(flow * (ordinal - 1) + phase)


def phases(count: int) -> list[Fraction]:
    """Returns the phases of `count` parallel flows (quotas of domains): they launch their extra prompts in turn, not all in one race.

    The first is 0, so that it is never ahead: once it has launched a quota of extra prompts, so has every other flow of that `factor`.
    """
    return [Fraction(number, count) for number in range(count)]


def settle_whole(
    view: View, part: PartRecord, prompts: int, group_size: int, *, drop_zero_variance: bool
) -> Sequence[Decision]:
    """Fills an open round with `prompts` groups of `group_size` responses, waits for all, and closes it once every group is decided.

    With `drop_zero_variance` each group that was dropped for equal rewards is replaced, within MAX_DRAWS_PER_ROUND.
    """
    wanted = prompts
    if drop_zero_variance:
        wanted = min(prompts + part.dropped.get(DropReason.ZERO_VARIANCE, 0), prompts * MAX_DRAWS_PER_ROUND)
    if missing := wanted - (part.launched - sum(part.deferred.values())):
        queued = tuple(islice(view.queue, missing))
        return [Launch(part.number, group_size, queued, missing - len(queued))]
    return [] if part.undecided else [events.RoundClosed(part.number)]


# --- Decisions about a group --------------------------------------------------------------------------------------


def dropped(group: GroupRecord, reason: DropReason) -> events.GroupDropped:
    """Gives up the prompt for this epoch."""
    return events.GroupDropped(group.prompt, group.attempt, reason)


def deferred(group: GroupRecord, reason: DeferReason) -> events.GroupDeferred:
    """Gives up this attempt, and queues the prompt for another one."""
    return events.GroupDeferred(group.prompt, group.attempt, reason)


def judge(group: GroupRecord | None, *, drop_zero_variance: bool) -> events.GroupKept | events.GroupDropped | None:
    """Keeps a group once it is fully graded.

    Drops it for a grader error, if reward functions apply to too few of its samples, or for equal rewards with `drop_zero_variance`.
    """
    if group is None:
        return None
    if group.errors:
        return dropped(group, DropReason.GRADER_ERROR)
    if not group.rewarded or group.state is SampleState.KEPT:
        return None
    if group.incomparable:
        return dropped(group, DropReason.NOT_APPLICABLE)
    if drop_zero_variance and group.zero_variance:
        return dropped(group, DropReason.ZERO_VARIANCE)
    return events.GroupKept(group.prompt, group.attempt)


def off_version(view: View, sample: SampleId) -> bool:
    """Whether the sample has tokens of weights other than its round's."""
    group, record = view.groups.get(sample.prompt), view.sample(sample)
    if group is None or record is None:
        return False
    version = view.rounds[group.round].version
    return any(span.version != version for span in record.spans)


# --- Races: the first groups to be complete count -----------------------------------------------------------------
# What a round keeps depends on the order in which responses are generated, never on when they are graded.


def places(part: PartRecord, prompts: int) -> int:
    """Counts the groups that a race for `prompts` groups can train: fewer by those dropped for a reason in NOT_REPLACED.

    Where environments failed it is one at least while any group is left: otherwise groups that may yet be played would be left out for a
    step that trains nothing.
    """
    remaining = prompts - sum(part.dropped.get(reason, 0) for reason in NOT_REPLACED)
    return max(remaining, min(1, len(part.groups))) if DropReason.ENVIRONMENT_ERROR in part.dropped else remaining


def may_draw(part: PartRecord, prompts: int) -> bool:
    """Whether dynamic sampling may draw more prompts: see MAX_DRAWS_PER_ROUND."""
    return part.dropped.get(DropReason.ZERO_VARIANCE, 0) <= prompts * (MAX_DRAWS_PER_ROUND - 1)


def judge_racing(
    view: View, part: PartRecord, prompt: PromptId, wanted: int, *, drop_zero_variance: bool
) -> events.GroupKept | events.GroupDropped | None:
    """Judges groups of the round after a sample of this prompt was graded.

    Only complete groups are judged. With `drop_zero_variance`, groups beyond the first `wanted` wait for an earlier one to be dropped.
    """
    group = view.groups.get(prompt)
    if group is None:
        # The group has just been dropped, so another one may count.
        prompts = islice(part.completed, wanted)
        judged = (judge_complete(view.groups.get(prompt), drop_zero_variance=drop_zero_variance) for prompt in prompts)
        return next((decision for decision in judged if decision), None)
    if group.round != part.number or prompt not in part.groups:
        return None
    chosen = group.state is SampleState.KEPT or not drop_zero_variance or prompt in islice(part.completed, wanted)
    return judge_complete(group, drop_zero_variance=drop_zero_variance) if chosen else None


def judge_complete(
    group: GroupRecord | None, *, drop_zero_variance: bool
) -> events.GroupKept | events.GroupDropped | None:
    """Judges a group on its own if it is complete; None otherwise."""
    complete = group is not None and group.completed is not None
    return judge(group, drop_zero_variance=drop_zero_variance) if complete else None


def losers(view: View, part: PartRecord, wanted: int, *, drop_zero_variance: bool) -> list[GroupRecord]:
    """Returns the groups to leave out of the round once the first `wanted` are complete (kept, with `drop_zero_variance`); else none."""
    finished = part.kept if drop_zero_variance else part.completed
    if len(part.groups) <= wanted or len(finished) < wanted:
        return []
    winners = set(islice(finished, wanted))
    return [view.groups[prompt] for prompt in part.groups if prompt not in winners]


# --- Groups that one round leaves to a later one ------------------------------------------------------------------


def reached(attempts: Collection[GivenUp]) -> dict[PromptId, float]:
    """Returns by prompt how far the longest sample of its attempt had got, as a share (0..1) of the furthest among `attempts`.

    Rule: its tokens or its seconds in its environment, whichever is further.
    """
    tokens = max((attempt.longest for attempt in attempts), default=0) or 1
    seconds = max((attempt.slowest for attempt in attempts), default=0.0) or 1.0
    return {attempt.prompt: max(attempt.longest / tokens, attempt.slowest / seconds) for attempt in attempts}


def adopt(
    view: View, number: int, prompts: Iterable[PromptId], wanted: int, *, drop_zero_variance: bool
) -> list[Decision]:
    """Decides that round `number` adopts these carried groups, in this order, and that their paused samples resume.

    No group of the round may be complete before. A group may have been completed and graded while it waited. No event will report
    that again, so if it is among the first `wanted` complete groups it is judged here.
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
    """Relaunches lost samples, on-policy, if the weights of their round still serve; else defers their group.

    A relaunch begins at the start, or after the tokens that the store has of a sample that was moved. The same weights draw it, as they
    drew the rest of its group. On other weights it would mix versions within a group, so the prompt is queued for a new attempt.

    Samples stay lost while no weights serve: between a driver's start and its first publication. So do those in a batch that is being
    trained, since the trainer may already have read them, and those of streamed groups. The group of a sample that has failed too often is
    dropped (`_failed`).
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
        if round_.state is RoundState.TRAINING or sample.prompt in round_.streamed:
            continue
        if reason := _failed(view, sample):
            given_up.add(sample.prompt)
            decisions.append(dropped(group, reason))
        elif round_.version == view.serving:
            decisions.append(events.Relaunched(sample))
        else:
            given_up.add(sample.prompt)
            decisions.append(deferred(group, DeferReason.VERSION_GONE))
    return decisions


def relaunch_lost(view: View) -> list[Decision]:
    """Relaunches lost samples, off-policy, on whatever weights serve, with their seed and after the tokens that the store has of them.

    They stay lost while no weights serve, in a batch that is being trained, in streamed groups, and in a carried group until a round
    adopts it. The group of a sample that has failed too often is dropped (`_failed`).
    """
    if view.serving is None:
        return []
    needed = [sample for sample in view.lost if _is_needed(view, sample)]
    failed = {sample.prompt: reason for sample in needed if (reason := _failed(view, sample))}
    relaunched = [events.Relaunched(sample) for sample in needed if sample.prompt not in failed]
    return [*(dropped(view.groups[prompt], reason) for prompt, reason in failed.items()), *relaunched]


def _failed(view: View, sample: SampleId) -> DropReason | None:
    """Says why a lost sample isn't generated again; None if it is."""
    record = view.sample(sample)
    if record is None:
        return None
    return failure_of(record.engine_deaths, record.environment_losses, episode=record.playing)


def failure_of(engine_deaths: int, environment_losses: int, *, episode: bool) -> DropReason | None:
    """Says why a sample that was lost so often has failed too often: `MOST_ENGINE_DEATHS`, or `MOST_ENVIRONMENT_LOSSES`. None if not.

    Of an episode a single death counts: it is reported once that many engines have died with one turn.
    """
    if engine_deaths >= (1 if episode else MOST_ENGINE_DEATHS):
        return DropReason.ENGINE_DEATHS
    return DropReason.ENVIRONMENT_ERROR if environment_losses >= MOST_ENVIRONMENT_LOSSES else None


def _is_needed(view: View, sample: SampleId) -> bool:
    if sample.prompt in view.carried:
        return False
    round_ = view.rounds[view.groups[sample.prompt].round]
    return round_.state is not RoundState.TRAINING and sample.prompt not in round_.streamed
