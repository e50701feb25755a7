"""The prompts that wait for a launch, as metrics and as a line for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from longboat_runtime.metrics.batch import spread
from longboat_runtime.rounds.view import View


def queue_metrics(view: View, round_: int) -> dict[str, float]:
    """Returns `tail/queue_len`, also by domain, and `tail/queue_age/*`.

    The latter are over the deferred prompts: the rounds, up to this one, since each was in one; 0 without any.
    """
    ages = [float(round_ - given_up.round) for given_up in view.deferred.values()]
    return {
        "tail/queue_len": float(len(view.queue)),
        **{f"tail/queue_len/{domain}": float(count) for domain, count in view.queued_by_domain.items()},
        **spread("tail/queue_age", ages or [0.0]),
    }


def queue_line(metrics: Mapping[str, float]) -> str | None:
    """Returns a line such as `24 prompts, the oldest for 3 rounds`; None if by these metrics nothing waits, or they don't say."""
    waiting, age = int(metrics.get("tail/queue_len", 0)), int(metrics.get("tail/queue_age/max", 0))
    if not waiting:
        return None
    return f"{waiting} prompt{'s' * (waiting > 1)}, the oldest for {age} round{'s' * (age != 1)}"
