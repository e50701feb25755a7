"""Numbers of driver starts. Pure."""

from __future__ import annotations

from longboat_crds.incarnations import least_number
from longboat_crds.status import Demand, Incarnation


def granted(current: Incarnation | None, request: str | None) -> Incarnation | None:
    """Returns the incarnation that is current once the token that a driver asks with is answered.

    Rule: a token other than the one answered last is a new start and gets the next number, or the least that it asks for if that is higher:
    a status that was restored from a backup lacks later starts. Numbers only grow. The token answered last, or none, changes nothing.
    """
    if not request or (current and current.request == request):
        return current
    following = current.number + 1 if current else 1
    return Incarnation(number=max(following, least_number(request)), request=request)


def failure_before(current: Incarnation | None, demand: Demand | None) -> str | None:
    """Returns how the driver's previous start failed; None unless its container outlived that, and a request for a number is unanswered.

    Rule: a failure is counted once. The end of a container or pod is reported by its node; a failure inside the driver's container by the
    next start, with its request for a number, so the plan that answers counts it. A start after a suspension, or because the Ray head is
    a new one, follows no failure of the driver.
    """
    if demand is None or granted(current, demand.incarnation_request) is current:
        return None
    return demand.previous_failure


def revoked(current: Incarnation | None) -> Incarnation | None:
    """Returns the incarnation with the next number, although no driver asked; None if none has had one.

    Rule: a job that resumes, or whose pods were released, gets new pods. So whatever the previous driver wrote, or still writes from a lost
    node, belongs to an earlier start from now on. The same is true of a driver that ended and is replaced because steps are left.
    """
    return current and Incarnation(number=current.number + 1, request=current.request)
