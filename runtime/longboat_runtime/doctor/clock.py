"""Compares the clock with the API server's, and with its own monotonic one."""

from __future__ import annotations

import http.client
import os
import ssl
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path

from longboat_runtime.doctor.finding import Finding, note, ok, skipped, wrong
from longboat_runtime.doctor.place import Place

CLOCK = "clock"
# Seconds of difference from which it is worth a note, and from which credentials and times of different nodes can't be relied on.
_NOTICED, _HARMFUL = 2.0, 60.0
# Seconds by which the wall clock may differ from the monotonic one within the seconds that this program runs.
_STEP = 0.5
_REQUEST_SECONDS = 5.0
_CERTIFICATES = Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")


@dataclass(frozen=True, slots=True)
class Clock:
    """Holds what was measured: `skew`, the least seconds by which this clock is ahead of the API server's, None because of a `problem`.

    `stepped` are the seconds that the wall clock gained on the monotonic one meanwhile. `cluster` says whether there is an API server.
    """

    skew: float | None = None
    problem: str = ""
    stepped: float = 0.0
    cluster: bool = False


def least_skew(before: float, after: float, date: float) -> float:
    """Returns the least seconds by which a clock is ahead if it showed `before` and `after` around an answer of `date`. Pure.

    The answer's date is cut to seconds, so a right clock shows a time in [date, date + 1), and one between `before` and `after`.
    """
    if before > date + 1:
        return before - date - 1
    return min(after - date, 0.0)


def judge_clock(clock: Clock, place: Place) -> Finding:
    """Judges the clock; only a driver has to reach the API server. Pure."""
    cure = f"let a time service (chrony, systemd-timesyncd) set the clock of {f'node {place.node}' if place.node else 'this machine'}"
    unreached = f"the API server can't be reached: {clock.problem}"
    if clock.cluster and clock.skew is None and place.container == "driver":
        network = (
            "see NetworkPolicies of the namespace (egress of driver pods to the API server), and the cluster's network"
        )
        return wrong(CLOCK, unreached, network)
    skew = clock.skew or 0.0
    if abs(skew) >= _NOTICED:
        text = f"{abs(skew):.0f} s or more {'ahead of' if skew > 0 else 'behind'} the API server's"
        return (wrong if abs(skew) >= _HARMFUL else note)(CLOCK, text, cure)
    if abs(clock.stepped) > _STEP:
        return note(CLOCK, f"it was set by {clock.stepped:+.1f} s within the last seconds", cure)
    if not clock.cluster:
        return skipped(CLOCK, "it runs evenly; there is no API server to compare it with")
    if clock.skew is None:
        return skipped(CLOCK, f"it runs evenly; {unreached}, which only a driver needs")
    return ok(CLOCK, "within 2 s of the API server's")


def own_clock() -> Clock:
    """Compares this clock with the API server's, if this is a pod."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if host is None:
        return Clock()
    try:
        before = time.time()
        date = _api_date(host, int(port))
        return Clock(least_skew(before, time.time(), date), cluster=True)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Clock(problem=str(error), cluster=True)


def _api_date(host: str, port: int) -> float:
    """Returns the date of an answer of the API server, whatever it answers: no credential is sent."""
    if _CERTIFICATES.exists():
        context = ssl.create_default_context(cafile=str(_CERTIFICATES))
    else:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(host, port, timeout=_REQUEST_SECONDS, context=context)
    try:
        connection.request("GET", "/version")
        return parsedate_to_datetime(connection.getresponse().getheader("Date", "")).timestamp()
    finally:
        connection.close()
