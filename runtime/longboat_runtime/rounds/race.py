"""Which groups of a racing round count: the first that are complete. Pure.

What a round keeps depends on the order in which responses are generated, never on when they are graded.
"""

from __future__ import annotations

from itertools import islice

from longboat_runtime.rounds.events import NOT_REPLACED, DropReason
from longboat_runtime.rounds.judging import judge
from longboat_runtime.rounds.policy import Action
from longboat_runtime.rounds.records import State
from longboat_runtime.rounds.view import GroupView, PartView, View
from longboat_runtime.rounds.whole_rounds import MAX_DRAWS_PER_ROUND
from longboat_runtime.samples import PromptId


def places(part: PartView, prompts: int) -> int:
    """Groups that a race for `prompts` of them still can train: some that are dropped are not replaced."""
    return prompts - sum(part.dropped.get(reason, 0) for reason in NOT_REPLACED)


def may_draw(part: PartView, prompts: int) -> bool:
    """Dynamic sampling ends: see MAX_DRAWS_PER_ROUND."""
    return part.dropped.get(DropReason.ZERO_VARIANCE, 0) <= prompts * (MAX_DRAWS_PER_ROUND - 1)


def verdict(view: View, round_: PartView, prompt: PromptId, wanted: int, *, drop_zero_variance: bool) -> Action | None:
    """What becomes of groups of the round now that one of this prompt was graded.

    Only complete groups are judged. With `drop_zero_variance` those beyond the first `wanted` wait for an earlier one to be dropped.
    """
    group = view.group(prompt)
    if group is None:
        # It was dropped a moment ago, so another one may count.
        prompts = islice(round_.completed, wanted)
        verdicts = (judge_complete(view.group(prompt), drop_zero_variance=drop_zero_variance) for prompt in prompts)
        return next((found for found in verdicts if found), None)
    if group.round != round_.number or prompt not in round_.groups:
        return None
    chosen = group.state is State.KEPT or not drop_zero_variance or prompt in islice(round_.completed, wanted)
    return judge_complete(group, drop_zero_variance=drop_zero_variance) if chosen else None


def losers(round_: PartView, wanted: int, *, drop_zero_variance: bool) -> list[PromptId]:
    """Groups that the round goes on without, once the first `wanted` are complete (kept, with `drop_zero_variance`); else none."""
    finished = round_.kept if drop_zero_variance else round_.completed
    if len(round_.groups) <= wanted or len(finished) < wanted:
        return []
    winners = set(islice(finished, wanted))
    return [prompt for prompt in round_.groups if prompt not in winners]


def judge_complete(group: GroupView | None, *, drop_zero_variance: bool) -> Action | None:
    """What becomes of a complete group by itself; None for another one."""
    complete = group is not None and group.completed is not None
    return judge(group, drop_zero_variance=drop_zero_variance) if complete else None
