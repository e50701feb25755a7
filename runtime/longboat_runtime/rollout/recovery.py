"""Decides what happens to an engine whose weights are not the published ones. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason

# The refusals in a row after which every remedy was tried: the weights were sent again, and the engine was restarted.
EXHAUSTED = 3
# Pause before the first restart that follows that, in seconds; it doubles with each.
BACKOFF_SECONDS = 5.0
MAX_BACKOFF_SECONDS = 300.0

_CURE = (
    "If checksums differ, weights are damaged on their way: look at memory and network of these nodes. If log-probs do, engine and "
    "trainer compute different things from the same bytes: try rollout.enforceEager: true, rollout.tensorParallel: 1 or "
    "another model.dtype, or a runtime with a vLLM that knows this architecture."
)


class Remedy(StrEnum):
    """Names what is tried with an engine that refused."""

    RESEND = "resend"
    """It gets the same publication once more."""
    RESTART = "restart"
    """It is restarted, and then gets the newest publication."""


@dataclass(frozen=True, slots=True)
class NextTry:
    """The remedy, and the seconds to wait before it."""

    remedy: Remedy
    wait: float = 0.0


def after_refusal(refusals: int) -> NextTry:
    """Decides what to do about the `refusals`-th refusal in a row (from 1) of one slot, whose engine may have been restarted between.

    First the publication is sent again, which cures what went wrong on the way. Then the engine is restarted, which cures a damaged one.
    Then it is restarted after pauses that double up to a limit, so that an engine that can't be cured costs little. A publication that
    passes resets the count. A newer one doesn't wait for the end of a pause.
    """
    if refusals < EXHAUSTED - 1:
        return NextTry(Remedy.RESEND)
    pauses = refusals - EXHAUSTED
    wait = 0.0 if pauses < 0 else min(BACKOFF_SECONDS * 2.0 ** min(pauses, 32), MAX_BACKOFF_SECONDS)
    return NextTry(Remedy.RESTART, wait)


def all_engines_refused(refusals: Collection[int], serving: int) -> bool:
    """Whether no engine can be expected to serve: none does, and in each slot (`refusals` are those in a row) everything has been tried."""
    return not serving and bool(refusals) and min(refusals) >= EXHAUSTED


def refused_everywhere(version: int, reasons: Mapping[str, str]) -> SpecProblem:
    """Returns the problem that fails a job in the case of `all_engines_refused`; `reasons` by engine name."""
    each = "; ".join(reason for _, reason in sorted(reasons.items()))
    message = f"No engine serves the weights of step {version}, although each was sent them again and was restarted: {each}. {_CURE}"
    return SpecProblem(Reason.ENGINE_REFUSED, None, message)
