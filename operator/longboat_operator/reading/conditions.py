"""Conditions: what one says, and how to find it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longboat_crds.reasons import ConditionType
from longboat_crds.status import Condition


@dataclass(frozen=True, slots=True)
class Finding:
    """Holds the present value of one condition, without its times."""

    type: ConditionType
    holds: bool
    reason: str
    message: str = ""


def find(conditions: Sequence[Condition] | None, kind: str) -> Condition | None:
    """Finds the condition of a type; None if there is none."""
    return next((c for c in conditions or () if c.type == kind), None)


def holds(conditions: Sequence[Condition] | None, kind: ConditionType) -> bool:
    """Whether the condition is there and True."""
    condition = find(conditions, kind)
    return condition is not None and condition.status == "True"


def has_ended(conditions: Sequence[Condition] | None) -> bool:
    """Whether the job is terminal."""
    return any(holds(conditions, kind) for kind in (ConditionType.SUCCEEDED, ConditionType.FAILED))
