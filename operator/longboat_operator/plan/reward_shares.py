"""Divides a job's CPUs for grading: what each reward pool may have in the end. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from longboat_crds.quantities import cpu_quantity, millicores
from longboat_crds.rewards import RewardPoolSpec
from longboat_crds.status import PoolCpu, RewardDemand, RewardGrant

# A smaller move costs more than it brings: every move holds CPUs back from both pools for a moment.
LEAST_CHANGE = 250

Millicores = Mapping[str, int]


def reward_grant_of(
    total: int, pools: Sequence[RewardPoolSpec], old: RewardGrant | None, demand: RewardDemand | None
) -> RewardGrant:
    """Divides `total` millicores among the pools; `demand` is that of the current incarnation, `old` what was granted last.

    Rule:
    * if nothing was granted yet, or the last grant doesn't fit the spec, `total` is first divided by graders (`by_graders`);
    * a demand moves CPUs to the pools that ask for more (`moved`), its requests brought within each pool's bounds and, together, within
      `total` (`within`);
    * without a demand of the current incarnation, the division of a grant that fits the spec stays.
    """
    bounds = {pool.name: pool.cpu_bounds(total) for pool in pools}
    current = {pool.name: millicores(pool.cpu) for pool in (old.pools if old else None) or ()}
    fits = (
        current.keys() == bounds.keys()
        and all(bounds[name][0] <= cpu <= bounds[name][1] for name, cpu in current.items())
        and sum(current.values()) <= total
    )
    if not fits:
        current = by_graders(total, pools)
    if demand:
        requests = {pool.name: millicores(pool.cpu) for pool in demand.pools or ()}
        current = moved(
            total, current, within(total, bounds, current | {n: cpu for n, cpu in requests.items() if n in bounds})
        )
    shares = [PoolCpu(name=name, cpu=cpu_quantity(current[name])) for name in bounds]
    return RewardGrant(answers=demand.number if demand else None, pools=shares)


def by_graders(total: int, pools: Sequence[RewardPoolSpec]) -> dict[str, int]:
    """Divides `total` in proportion to the graders of each pool, as far as its bounds allow."""
    graders = {pool.name: pool.replicas * pool.graders_per_pod for pool in pools}
    return proportional(total, graders, {pool.name: pool.cpu_bounds(total) for pool in pools})


def within(total: int, bounds: Mapping[str, tuple[int, int]], requests: Millicores) -> dict[str, int]:
    """Brings requests within their pools' bounds; if they then add up to more than `total`, cuts them in proportion, above the least."""
    wanted = {name: min(max(requests[name], least), most) for name, (least, most) in bounds.items()}
    if sum(wanted.values()) <= total:
        return wanted
    return proportional(total, wanted, {name: (bounds[name][0], wanted[name]) for name in wanted})


def proportional(total: int, weights: Millicores, bounds: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Divides `total` in proportion to `weights`, each part within its bounds; together the parts are as much of `total` as these allow.

    Rule: parts beyond a bound are set to it, those of the side that is further off in sum first, and the others share the
    rest anew (the algorithm of CSS Flexible Box Layout, section 9.7). The lowest bounds together are at most `total`.
    """
    fixed: dict[str, int] = {}
    while free := [name for name in weights if name not in fixed]:
        rest = total - sum(fixed.values())
        share = {name: weights[name] for name in free}
        if not any(share.values()):
            share = dict.fromkeys(free, 1)
        # Everything is multiplied by `whole`: compared after rounding, the two sides could be mistaken for each other.
        whole = sum(share.values())
        ideal = {name: rest * share[name] for name in free}
        low = {name: bounds[name][0] * whole - ideal[name] for name in free if ideal[name] < bounds[name][0] * whole}
        high = {name: ideal[name] - bounds[name][1] * whole for name in free if ideal[name] > bounds[name][1] * whole}
        if not low and not high:
            fixed |= {name: ideal[name] // whole for name in free}
        elif sum(low.values()) >= sum(high.values()):
            fixed |= {name: bounds[name][0] for name in low}
        else:
            fixed |= {name: bounds[name][1] for name in high}
    remainder = total - sum(fixed.values())
    for name in weights:  # what was lost by rounding down
        more = min(remainder, bounds[name][1] - fixed[name], 1)
        fixed[name] += more
        remainder -= more
    return {name: fixed[name] for name in weights}


def moved(total: int, current: Millicores, wanted: Millicores) -> dict[str, int]:
    """Moves CPUs to the pools that want more than they hold; returns what each then has. Neither map adds up to more than `total`.

    Rule: unassigned CPUs are given first, then those of the pools that hold most beyond what they want. None leaves a pool
    but for another that wants more, and no pool gains or loses less than `LEAST_CHANGE`.
    """
    spare = total - sum(current.values())
    surplus = {name: current[name] - wanted[name] for name in current if current[name] - wanted[name] >= LEAST_CHANGE}
    donors = sorted(surplus, key=lambda name: (-surplus[name], name))
    needs = {name: wanted[name] - current[name] for name in current if wanted[name] - current[name] >= LEAST_CHANGE}
    gains: dict[str, int] = {}
    available = spare + sum(surplus.values())
    for name in sorted(needs, key=lambda name: (-needs[name], name)):
        gain = min(needs[name], available)
        if gain >= LEAST_CHANGE:
            gains[name] = gain
            available -= gain
    losses: dict[str, int] = {}
    while gains:
        due = max(0, sum(gains.values()) - spare)
        losses = {}
        for name in donors:
            losses[name] = min(surplus[name], due)
            due -= losses[name]
        small = next((loss for loss in losses.values() if 0 < loss < LEAST_CHANGE), 0)
        if not small:
            break
        last = list(gains)[-1]
        gains[last] -= small
        if gains[last] < LEAST_CHANGE:
            del gains[last]
            losses = {}
    return {name: cpu + gains.get(name, 0) - losses.get(name, 0) for name, cpu in current.items()}
