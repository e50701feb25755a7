"""Numbers of driver starts. Pure."""

from __future__ import annotations

from longboat_crds.status import Demand, Incarnation


def granted(current: Incarnation | None, request: str | None) -> Incarnation | None:
    """The incarnation that counts, given the token that a driver asks with.

    Rule: a token other than the answered one is a new start and gets the next number; numbers only grow. A driver that
    asks again with its token gets the same answer.
    """
    if not request or (current and current.request == request):
        return current
    return Incarnation(number=current.number + 1 if current else 1, request=request)


def failure_before(current: Incarnation | None, demand: Demand | None) -> str | None:
    """How the driver's start before the one that asks now failed, if its container outlived that.

    Rule: every start of a driver has a cause that is counted once. That its container or pod ended, its node says; that
    it failed inside its container, its agent, with the request for a number, so it is counted by the plan that answers.
    A start after a suspension, or since the Ray head is a new one, follows no failure of the driver.
    """
    if demand is None or granted(current, demand.incarnation_request) is current:
        return None
    return demand.previous_failure


def revoked(current: Incarnation | None) -> Incarnation | None:
    """The number raised, answered to nobody.

    Rule: a resumed job's pods are new, so whatever the driver before them wrote, or still writes from a lost node, is
    of an earlier start from now on. So is what a driver wrote that has ended and is replaced because steps are left.
    """
    return current and Incarnation(number=current.number + 1, request=current.request)
