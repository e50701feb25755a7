"""Failures of a role that count as one. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

# A switch, a rack or a node that fails takes down its pods within seconds, and so does a rank whose end ends its peers.
INCIDENT = timedelta(seconds=60)
# The driver fails when it loses a pod that it works with. Ray tells it half a minute after a node is gone; Kubernetes
# removes the node's pods up to two minutes later (node-monitor-grace-period and the pods' toleration).
DISRUPTION = timedelta(minutes=3)
_ONE_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Incidents:
    """Holds when each incident began, in the order in which they were noticed."""

    times: tuple[datetime, ...] = ()

    def with_failure(
        self, time: datetime, last: datetime | None = None, *, same: bool = False
    ) -> tuple[Incidents, datetime]:
        """Adds a failure at `time`; returns the incidents after it, and the one that it belongs to.

        `last` is the incident of the last counted failure at the same place, `same` whether the same container failed then (or
        the pod as a whole, both times).

        Rule: a failure belongs to the first incident that began within `INCIDENT` of it, before or after, whatever the node; if none did,
        it begins one. But an incident before `last` is never chosen nor, with `same`, `last` itself: a container that ends twice in a
        row counts as two incidents.
        """
        first = last and (last + _ONE_SECOND if same else last)
        near = [
            incident
            for incident in self.times
            if abs(incident - time) <= INCIDENT and (first is None or incident >= first)
        ]
        if near:
            return self, min(near)
        begun = max(time, first) if first else time
        return Incidents((*self.times, begun)), begun

    def without_those_near(self, disruptions: Collection[datetime]) -> Incidents:
        """Returns the incidents that no disruption explains."""
        return Incidents(tuple(time for time in self.times if not explained(time, disruptions)))


def explained(time: datetime, disruptions: Collection[datetime]) -> bool:
    """Whether a failure of the driver at `time` lies within `DISRUPTION` of a pod's removal, before or after."""
    return any(abs(time - disruption) <= DISRUPTION for disruption in disruptions)
