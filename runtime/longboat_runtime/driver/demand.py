"""What the driver asks for: how many rollout pods, and which it would give back first. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from longboat_crds.status import LINE_LENGTH, RolloutDemand
from longboat_runtime.rollout.load import PodLoad


def give_first(pods: Mapping[str, PodLoad]) -> list[str]:
    """The pods in the order in which giving them back costs least: those that serve nothing, then those with the least under way.

    Equal ones go by name, the last first: the operator fills the lowest numbers first.
    """
    return sorted(sorted(pods, reverse=True), key=lambda pod: (pods[pod].serving > 0, pods[pod].running))


def next_demand(
    before: RolloutDemand | None,
    incarnation: int,
    replicas: int,
    pods: Mapping[str, PodLoad],
    drained: Sequence[str],
) -> RolloutDemand:
    """The demand of this incarnation that follows `before`, for so many `replicas`; `pods` are there, `drained` may be deleted.

    The rule: it gets another number if another number of pods is asked for or others have been drained. The order of `give_first` is
    taken anew then, and when pods have come or gone: what runs where changes all the time, and is no reason to ask again.
    """
    ask = replicas, [*drained] or None
    same = before is not None and (before.replicas, before.drained) == ask
    if before is not None and same and set(before.give_first or ()) == pods.keys():
        return before
    return RolloutDemand(
        incarnation=incarnation,
        number=(before.number if before else 0) + (not same),
        replicas=replicas,
        give_first=give_first(pods) or None,
        drained=ask[1],
        reason=f"rollout.replicas is {replicas}"[:LINE_LENGTH],
    )
