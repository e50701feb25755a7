"""Numbers of driver starts. Pure."""

from __future__ import annotations

from longboat_crds.status import Incarnation


def granted(current: Incarnation | None, request: str | None) -> Incarnation | None:
    """The incarnation that counts, given the token that a driver asks with.

    Rule: a token other than the answered one is a new start and gets the next number; numbers only grow. A driver that
    asks again with its token gets the same answer.
    """
    if not request or (current and current.request == request):
        return current
    return Incarnation(number=current.number + 1 if current else 1, request=request)


def revoked(current: Incarnation | None) -> Incarnation | None:
    """The number raised, answered to nobody.

    Rule: a resumed job's pods are new, so whatever the driver before them wrote, or still writes from a lost node, is
    of an earlier start from now on.
    """
    return current and Incarnation(number=current.number + 1, request=current.request)
