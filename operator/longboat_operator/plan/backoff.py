"""How long a replacement waits. Pure."""

from __future__ import annotations

from longboat_crds.failure import FailurePolicySpec


def wait_seconds(losses: int, policy: FailurePolicySpec) -> float:
    """Seconds from a pod's loss to its replacement, when it is the so-manieth of its index since the last step.

    Rule: `backoffSeconds`, doubled with each loss, at most `maxBackoffSeconds`.
    """
    doubled = policy.backoff_seconds * 2.0 ** min(max(losses - 1, 0), 32)
    return min(doubled, float(policy.max_backoff_seconds))
