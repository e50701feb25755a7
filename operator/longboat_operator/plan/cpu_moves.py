"""Moves of CPUs between reward pools, as a job's status tells them: from where to where, and why. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from longboat_crds.quantities import cpu_quantity, millicores
from longboat_crds.status import CpuMove, CpuMoveOutcome, PoolCpu, RewardCpuStatus
from longboat_operator.reading.status import reward_demand
from longboat_operator.reading.times import fine_stamp
from longboat_operator.reading.view import JobView


def moves_of_grant(
    view: JobView, old: RewardCpuStatus, granted: Sequence[PoolCpu], now: datetime
) -> tuple[CpuMove, ...]:
    """Returns the moves of `old` and the new ones, now that another division is granted.

    Rule: what is under way is superseded. What a pool gains is taken from those that lose, in their order, then from what nobody had; each
    part is a move. If `old` has no division, nothing moves.
    """
    over = {"outcome": CpuMoveOutcome.SUPERSEDED}
    moves = [
        move.model_copy(update=over) if move.outcome is CpuMoveOutcome.UNDER_WAY else move for move in old.moves or ()
    ]
    had = {pool.name: millicores(pool.cpu) for pool in old.pools or ()}
    change = {pool.name: millicores(pool.cpu) - had.get(pool.name, 0) for pool in granted} if had else {}
    losses = {name: -cpu for name, cpu in change.items() if cpu < 0}
    demand = reward_demand(view.status)
    reasons = {pool.name: pool.reason for pool in (demand.pools if demand else None) or ()}
    for target, gain in change.items():
        missing = gain
        for source in [*losses, None] if gain > 0 else []:
            part = missing if source is None else min(missing, losses[source])
            if part > 0:
                moves.append(
                    CpuMove(
                        source=source,
                        target=target,
                        cpu=cpu_quantity(part),
                        reason=reasons.get(target) or (demand.reason if demand else None),
                        outcome=CpuMoveOutcome.UNDER_WAY,
                        time=fine_stamp(now),
                    )
                )
                missing -= part
                if source is not None:
                    losses[source] -= part
    return tuple(moves)


def came_from(moves: Sequence[CpuMove], pool: str, cpu: int) -> dict[str, int]:
    """Divides `cpu`, the millicores that a pod of the pool was to gain, among the pools that gave them; returns their parts, by pool.

    Rule: in proportion to the newest moves to the pool, rounded down. What nobody had before is nobody's. Empty without a move.
    """
    to_pool = [move for move in moves if move.target == pool]
    newest = [move for move in to_pool if move.time == to_pool[-1].time]
    everything = sum(millicores(move.cpu) for move in newest)
    return {move.source: cpu * millicores(move.cpu) // everything for move in newest if move.source}
