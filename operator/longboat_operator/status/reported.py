"""Remembers in the status what Events have told, so that no operator tells it again. Pure."""

from __future__ import annotations

from longboat_crds.status import Reported, ReshapeSummary
from longboat_operator.model import digest
from longboat_operator.reading.status import RESHAPE_IDENTITY
from longboat_operator.reading.view import JobView


def reported_of(view: JobView) -> Reported | None:
    """Returns what has been reported once this status is published; None: nothing.

    Rule for reshapes: those in the current driver's status alone, so that the memory is bounded. Until it has written one, what is
    remembered stays.

    Rule for demands: whether the current driver's newest answered demand was limited. So a limit is told when it begins to hold, not
    with every further demand.
    """
    old = view.status.reported or Reported()
    reshapes, limited = old.reshapes, old.demand_limited
    if view.training:
        reshapes = [digest_of(reshape) for reshape in view.training.reshapes or ()]
    demand, grant = view.demand, view.grant
    if demand is None:
        limited = False
    elif grant and grant.answers == demand.number:
        limited = demand.replicas != grant.replicas
    new = Reported(reshapes=reshapes or None, demand_limited=limited or None)
    return None if new == Reported() else new


def digest_of(reshape: ReshapeSummary) -> str:
    """Names a reshape; what is measured of it later changes nothing."""
    text = reshape.to_json()
    return digest({key: text[key] for key in RESHAPE_IDENTITY if key in text})
