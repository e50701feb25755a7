"""What has been decided on the shapes of engines, by kind of round. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from longboat_runtime.rollout.parallelism import KindPlan
from longboat_runtime.rounds.events import RoundKind


def parallelism_metrics(plans: Mapping[RoundKind, KindPlan], kinds: Iterable[RoundKind]) -> dict[str, float]:
    """`parallelism/KIND/*` of these kinds: devices of each engine, how often that has changed, and what the last change gains.

    A gain is the share of seconds by which rounds become shorter, less than 0 if they become longer. It is missing while there is none:
    the expected one if nothing was predicted, the measured one until a round of the kind has followed a change.
    """
    metrics = dict[str, float]()
    for kind in kinds:
        plan, prefix = plans[kind], f"parallelism/{kind.lower()}"
        metrics[f"{prefix}/tensor_parallel"] = float(plan.tensor_parallel)
        metrics[f"{prefix}/changes"] = float(plan.changes)
        gains = {"gain_expected": plan.expected, "gain_measured": plan.gained}
        metrics |= {f"{prefix}/{name}": gain for name, gain in gains.items() if gain is not None}
    return metrics
