"""Conditions: a list with one entry a type, whose times change only when the status does. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from longboat_crds.reasons import ConditionType
from longboat_crds.status import Condition
from longboat_operator.status.times import stamp

MESSAGE_LENGTH = 4096


@dataclass(frozen=True, slots=True)
class Finding:
    """What holds now: the value of one condition without its times."""

    type: ConditionType
    holds: bool
    reason: str
    message: str = ""


def find(conditions: Sequence[Condition] | None, kind: str) -> Condition | None:
    """The condition of a type."""
    return next((c for c in conditions or () if c.type == kind), None)


def holds(conditions: Sequence[Condition] | None, kind: ConditionType) -> bool:
    """Whether the condition is there and True."""
    found = find(conditions, kind)
    return found is not None and found.status == "True"


def updated(
    conditions: Sequence[Condition] | None, findings: Sequence[Finding], generation: int, now: datetime
) -> list[Condition]:
    """Conditions after `findings`; types that none names stay as they are.

    Rule (source: Kubernetes API conventions, "Typical status properties"): `lastTransitionTime` is when `status` last
    changed, not reason or message.
    """
    result = {c.type: c for c in conditions or ()}
    for finding in findings:
        status = "True" if finding.holds else "False"
        old = result.get(finding.type)
        kept = old is not None and old.status == status
        result[finding.type] = Condition(
            type=finding.type,
            status=status,
            reason=finding.reason,
            message=finding.message[:MESSAGE_LENGTH],
            last_transition_time=old.last_transition_time if old and kept else stamp(now),
            observed_generation=generation,
        )
    order = {str(kind): i for i, kind in enumerate(ConditionType)}
    return sorted(result.values(), key=lambda c: order.get(c.type, len(order)))
