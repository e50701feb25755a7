"""What an answer of the API server means. Pure."""

from __future__ import annotations

from longboat_crds.reasons import ConditionType, Reason
from longboat_operator.reading.conditions import Finding
from longboat_operator.refusals import OF_AN_EARLIER_JOB, OF_SOMETHING_ELSE


def refusal_finding(kind: str, answer: str) -> Finding:
    """The condition that shows a refused look-up, create or apply; `answer` names the object and has the server's text.

    Rule: an invalid pod is the template's fault (the text names the field); anything else may pass by itself.
    """
    if kind == "Pod" and "is invalid" in answer:
        return Finding(ConditionType.RUNTIME_RESOLVED, False, Reason.POD_TEMPLATE_INVALID, answer)
    if "exceeded quota" in answer:
        return Finding(ConditionType.SCHEDULED, False, Reason.QUOTA_EXCEEDED, answer)
    if OF_SOMETHING_ELSE in answer:
        return Finding(ConditionType.SCHEDULED, False, Reason.NAME_TAKEN, answer)
    if OF_AN_EARLIER_JOB in answer:
        return Finding(ConditionType.SCHEDULED, False, Reason.PODS_STARTING, answer)
    return Finding(ConditionType.SCHEDULED, False, Reason.POD_REFUSED, answer)
