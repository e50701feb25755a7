"""The phase, and the reason that explains it, by the table of `longboat_crds.phases`. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from longboat_crds.phases import PHASES, PhaseRule, rule_of
from longboat_crds.status import Condition, Phase
from longboat_operator.reading.conditions import find


def phase_of(conditions: Sequence[Condition], *, wants_pods: bool, has_pods: bool) -> Phase:
    """One word for people, from the conditions that machines read and from the job's pods.

    Rule: the first of the table's phases that holds.
    """
    return next(
        rule.phase
        for rule in PHASES
        if rule.wants_pods in {None, wants_pods} and rule.has_pods in {None, has_pods} and _said(rule, conditions)
    )


def _said(rule: PhaseRule, conditions: Sequence[Condition]) -> bool:
    """Whether the condition that the rule names is there, and says what the rule asks for."""
    if rule.condition is None:
        return True
    found = find(conditions, rule.condition)
    status = "True" if rule.status else "False"
    return found is not None and found.status == status and (not rule.reasons or found.reason in rule.reasons)


def reason_of(conditions: Sequence[Condition], phase: Phase) -> str | None:
    """Reason of the condition that explains the phase: one that is not yet True, or one that is."""
    rule = rule_of(phase)
    found = [condition for kind in rule.explained_by if (condition := find(conditions, kind))]
    explaining = [condition for condition in found if (condition.status == "True") is not rule.awaited]
    return next((condition.reason for condition in (*explaining, *found[-1:])), None)
