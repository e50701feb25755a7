"""Divides `rewardCpu.total` among the reward pools of a job. Pure.

CPUs are whole millicores here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

# No pool gains or loses fewer millicores at once.
LEAST_MOVE = 250
# No pool gets more unless it then finishes the work of the open rounds sooner, by this many seconds (a move takes about one) and by this
# share of the time.
LEAST_GAIN_SECONDS, LEAST_GAIN = 1.0, 0.1
# The mean cost of a grade is taken over at least this many, once there are as many; older ones count less and less.
_REMEMBERED = 200
# Seconds that a grade takes at least.
_LEAST_COST = 1e-6
# The factor to which times are computed exactly.
_PRECISION_FACTOR = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """Measures what a reward pool has to do: `asked` are the grades without an answer, of which `at_once` at most run now.

    The oldest one that no worker has was asked for `queue_seconds` ago; 0 if there is none. `arrived` and `graded` count the grades asked
    for and answered since the driver started, `cpu_seconds` are those that graders used meanwhile.
    """

    asked: int = 0
    at_once: int = 0
    queue_seconds: float = 0.0
    arrived: int = 0
    graded: int = 0
    cpu_seconds: float = 0.0

    @property
    def waiting(self) -> int:
        """Number of grades that wait for others: those beyond `at_once`."""
        return max(0, self.asked - self.at_once)


@dataclass(slots=True)
class GradeCost:
    """CPU seconds of a grade of one pool, over its last some hundred grades."""

    _grades: float = 0.0
    _seconds: float = 0.0

    @property
    def mean(self) -> float | None:
        return self._seconds / self._grades if self._grades else None

    def learn(self, grades: int, cpu_seconds: float) -> None:
        """Records that so many more grades have been made, and so many CPU seconds used meanwhile."""
        self._grades += grades
        self._seconds += cpu_seconds
        while self._grades > 2 * _REMEMBERED:
            self._grades, self._seconds = self._grades / 2, self._seconds / 2


@dataclass(frozen=True, slots=True)
class PoolNeed:
    """Estimates what open rounds ask of a pool: `asked` grades have no answer yet, and about `expected` more will be asked for.

    A grade takes `cpu_seconds`; None if none has been made. At most `processes` run at once, each on one CPU. The pool keeps `least`, and
    can't have more than `most`. `queue_seconds` is the age of its queue.
    """

    asked: int
    expected: float
    cpu_seconds: float | None
    processes: int
    least: int
    most: int
    queue_seconds: float = 0.0

    @property
    def usable(self) -> int:
        """Millicores that the pool could use this moment; at least `least`, at most `most`."""
        return self._bounded(min(self.asked, self.processes) * 1000)

    @property
    def usable_in_round(self) -> int:
        """Millicores that the pool could use at once in the rest of the open rounds; at least `least`, at most `most`."""
        return self._bounded(min(math.ceil(self.asked + self.expected), self.processes) * 1000)

    def _bounded(self, cpu: int) -> int:
        return min(max(cpu, self.least), self.most)


@dataclass(frozen=True, slots=True)
class Division:
    """Says what each pool is to have, and why, in a line for people; `reason` is that of the whole."""

    pools: Mapping[str, int]
    reasons: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""


def divide(total: int, needs: Mapping[str, PoolNeed], before: Mapping[str, int]) -> Division:
    """Divides the total among the pools, given what each had `before`. The sum of their `least` must fit into the total.

    **The best division.** The next optimizer step waits for the last grade, so what counts is the pool that is done last. A pool that has
    W CPU seconds of work left in the open rounds and gets c CPUs takes W / c. W is the number of grades that it was asked for and that
    running responses will ask for, times the CPU seconds of a grade. The largest of these quotients is least if they are equal. So each
    pool gets CPUs in proportion to its work, within its least and most, and no more than it has grades to run on them at once. That is
    c = W / T within the bounds, for the smallest T whose sum fits into the total.

    **The way there.** A move costs about a second and frees nothing by itself, so CPU is taken only where another pool waits for it.
    Such a pool could use more this moment, and has less than its best division. It gets up to the difference, first of what no pool has,
    then of the pools that have most beyond their best division. A pool that idles while no other waits keeps what it has: its next grades
    would wait for it to come back. No pool gets more for a gain below LEAST_GAIN or LEAST_GAIN_SECONDS, and none gains or loses less than
    LEAST_MOVE, changes of its bounds and of the total aside. So what a steady load gets doesn't follow every fluctuation of measured costs.
    """
    had = _within_bounds(total, needs, before)
    work = _work(needs)
    best = _best(total, needs, work)
    wanted = {name: min(best[name], need.usable) - had[name] for name, need in needs.items()}
    spare = {name: had[name] - best[name] for name in needs}

    def worth(name: str, gain: int) -> bool:
        before, after = (_seconds(work[name], cpu, needs[name]) for cpu in (had[name], had[name] + gain))
        return gain >= LEAST_MOVE and before - after >= max(LEAST_GAIN_SECONDS, LEAST_GAIN * before)

    gains, losses = _moves(total - sum(had.values()), wanted, spare, worth)
    pools = {name: had[name] + gains.get(name, 0) - losses.get(name, 0) for name in needs}
    receivers = " and ".join(gains)
    reasons = {
        name: _reason(need, work[name], had[name], pools[name], receivers if name in losses else "")
        for name, need in needs.items()
    }
    return Division(pools, reasons, _summary(gains, losses))


def differs(first: Mapping[str, int], second: Mapping[str, int]) -> bool:
    """Whether the two divisions differ by at least LEAST_MOVE for some pool."""
    return any(abs(first.get(name, 0) - second.get(name, 0)) >= LEAST_MOVE for name in {*first, *second})


def _within_bounds(total: int, needs: Mapping[str, PoolNeed], before: Mapping[str, int]) -> dict[str, int]:
    """Returns what pools had, within the total and bounds, which may have changed since then."""
    had = {name: min(max(before.get(name, 0), need.least), need.most) for name, need in needs.items()}
    taken = _shared(sum(had.values()) - total, {name: had[name] - need.least for name, need in needs.items()})
    return {name: had[name] - taken.get(name, 0) for name in had}


def _work(needs: Mapping[str, PoolNeed]) -> dict[str, float]:
    """Estimates the CPU seconds of each pool's work.

    A grade of unknown cost counts as the mean over the pools whose cost is known, or as one second if none is.
    """
    costs = [need.cpu_seconds for need in needs.values() if need.cpu_seconds is not None]
    usual = sum(costs) / len(costs) if costs else 1.0
    return {
        name: (need.asked + need.expected) * max(usual if need.cpu_seconds is None else need.cpu_seconds, _LEAST_COST)
        for name, need in needs.items()
    }


def _best(total: int, needs: Mapping[str, PoolNeed], work: Mapping[str, float]) -> dict[str, int]:
    """Returns the best division: in proportion to work, within bounds (see `divide`)."""
    most = {name: need.usable_in_round for name, need in needs.items()}
    if sum(most.values()) <= total:
        return most

    def divided(seconds: float) -> dict[str, int]:
        return {
            name: max(int(min(1000 * work[name] / seconds, most[name])), need.least) for name, need in needs.items()
        }

    # Within the shorter time all pools have their most; within the longer one no pool needs more than its least.
    short = max(min((1000 * work[name] / most[name] for name in needs if work[name]), default=0.0), _LEAST_COST)
    long = max(2 * short, *(1000 * work[name] / max(need.least, 1) for name, need in needs.items()))
    while long > short * _PRECISION_FACTOR:
        middle = math.sqrt(short * long)
        if sum(divided(middle).values()) > total:
            short = middle
        else:
            long = middle
    return divided(long)


def _shared(amount: int, spare: Mapping[str, int]) -> dict[str, int]:
    """Shares the amount in proportion to what each has to spare, no more than all have; empty if there is nothing to share."""
    everything = sum(spare.values())
    amount = min(amount, everything)
    if amount <= 0:
        return {}
    shared = {name: amount * cpu // everything for name, cpu in spare.items()}
    for name in sorted(spare, key=lambda name: (shared[name] - spare[name], name)):
        more = min(amount - sum(shared.values()), spare[name] - shared[name])
        shared[name] += more
    return shared


def _moves(
    free: int, wanted: Mapping[str, int], spare: Mapping[str, int], worth: Callable[[str, int], bool]
) -> tuple[dict[str, int], dict[str, int]]:
    """Returns what pools gain and lose, without those that keep what they have: who wants most gets it first, if the gain is `worth` it.

    `free` is what no pool has, `spare` what each has beyond its best division.
    """
    receivers = sorted(wanted, key=lambda name: (-wanted[name], name))
    donors = sorted((name for name in spare if spare[name] >= LEAST_MOVE), key=lambda name: (-spare[name], name))
    gains: dict[str, int] = {}
    available = free + sum(spare[name] for name in donors)
    for name in receivers:
        gain = min(wanted[name], available)
        if worth(name, gain):
            gains[name] = gain
            available -= gain
    while gains:
        losses: dict[str, int] = {}
        due = sum(gains.values()) - free
        for name in donors:
            if due > 0:
                losses[name] = min(spare[name], due)
                due -= losses[name]
        small = min(losses.values(), default=LEAST_MOVE)
        if small >= LEAST_MOVE:
            return gains, losses
        # Only the last donor's part can be too small: do without it.
        last = [*gains][-1]
        gains[last] -= small
        if not worth(last, gains[last]):
            del gains[last]
    return {}, {}


def _seconds(work: float, cpu: int, need: PoolNeed) -> float:
    """Returns how many seconds the work takes with so many millicores, of which no more than `usable_in_round` are used."""
    return 1000 * work / max(min(cpu, need.usable_in_round), 1)


def _reason(need: PoolNeed, work: float, had: int, has: int, receivers: str) -> str:
    """Explains what one pool has; `receivers` names those that get what it gives, and is empty if it gives nothing."""
    if not need.asked and not need.expected:
        todo = "nothing to do"
    else:
        each = "" if need.cpu_seconds is None else f" of {need.cpu_seconds:.2g} CPU s"
        since = f", the first for {need.queue_seconds:.0f} s" if need.queue_seconds >= 1.0 else ""
        todo = f"{need.asked:,} grades{each} to do{since}, {need.expected:,.0f} to come"
    after = _seconds(work, has, need)
    if has > had:
        return f"{todo}: {after:.0f} s of work instead of {_seconds(work, had, need):.0f} s"
    if receivers:
        return f"{todo}: {after:.0f} s of work with what it leaves to {receivers}"
    return f"{todo}: {after:.0f} s of work"


def _summary(gains: Mapping[str, int], losses: Mapping[str, int]) -> str:
    if not gains:
        return "no pool waits for CPUs that another has too many of"
    gets = " and ".join(f"{name} gets {cpu}m" for name, cpu in gains.items())
    return gets + (" from " + " and ".join(losses) if losses else " that no pool had")
