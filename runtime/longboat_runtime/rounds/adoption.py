"""How a round takes in groups that rounds before it have carried. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from longboat_runtime.rounds.events import NOT_REPLACED
from longboat_runtime.rounds.policy import Action, Adopt, Drop
from longboat_runtime.rounds.race import judge_complete
from longboat_runtime.rounds.view import View
from longboat_runtime.samples import PromptId


def adopt(
    view: View, number: int, prompts: Iterable[PromptId], wanted: int, *, drop_zero_variance: bool
) -> list[Action]:
    """Adopts these groups in this order; no other group of the round may be complete before them.

    A group may have been finished and graded while it waited. No event will say so again: among the first `wanted` complete
    ones it is judged here.
    """
    actions: list[Action] = []
    complete = 0
    for prompt in prompts:
        actions.append(Adopt(number, prompt))
        group = view.group(prompt)
        if group is None or group.completed is None or complete >= wanted:
            continue
        verdict = judge_complete(group, drop_zero_variance=drop_zero_variance)
        if verdict:
            actions.append(verdict)
        if not isinstance(verdict, Drop):
            complete += 1
        elif verdict.reason in NOT_REPLACED:
            wanted -= 1
    return actions
