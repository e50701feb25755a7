"""How `rewardCpu.total` is divided over the reward pools of a job, and what moving it gains. Pure.

CPUs are whole millicores here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

# No pool gains or loses less at once,
LEAST_MOVE = 250
# and none gets more unless it is done with what the open rounds ask of it sooner, by so many seconds (a move takes about one) and by this
# share of the time.
LEAST_GAIN_SECONDS, LEAST_GAIN = 1.0, 0.1
# The mean cost of a grade is over so many at least, once there are that many; older ones count less and less.
_REMEMBERED = 200
# Seconds that a grade takes at least.
_LEAST_COST = 1e-6
# How exactly times are computed.
_EXACT = 1 + 1e-9
# Over how many rounds at most, before a move and after it, its gain is measured.
GAIN_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """What a reward pool has to do: `asked` are the grades without an answer, of which `at_once` at most run now.

    The first one that no worker has been given yet waits there for `queue_seconds`; 0 if there is none. `arrived` and `graded` count the
    grades asked for and answered since the driver started, `cpu_seconds` are those that graders used meanwhile.
    """

    asked: int = 0
    at_once: int = 0
    queue_seconds: float = 0.0
    arrived: int = 0
    graded: int = 0
    cpu_seconds: float = 0.0

    @property
    def waiting(self) -> int:
        """How many grades wait for others."""
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
        """So many grades more have been made, and so many CPU seconds used meanwhile."""
        self._grades += grades
        self._seconds += cpu_seconds
        while self._grades > 2 * _REMEMBERED:
            self._grades, self._seconds = self._grades / 2, self._seconds / 2


@dataclass(frozen=True, slots=True)
class PoolNeed:
    """What open rounds ask of a pool: `asked` grades have no answer yet, and about `expected` more will be asked for.

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
        """What it could use this moment."""
        return self._bounded(min(self.asked, self.processes) * 1000)

    @property
    def usable_in_round(self) -> int:
        """What it could use at most in the rest of the open rounds."""
        return self._bounded(min(math.ceil(self.asked + self.expected), self.processes) * 1000)

    def _bounded(self, cpu: int) -> int:
        return min(max(cpu, self.least), self.most)


@dataclass(frozen=True, slots=True)
class Division:
    """What each pool could use, and why, in a line for people; `reason` is that of the whole."""

    pools: Mapping[str, int]
    reasons: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""


def divide(total: int, needs: Mapping[str, PoolNeed], before: Mapping[str, int]) -> Division:
    """What each pool could use of the total, given what each had `before`. Their least must fit into the total.

    **The best division.** The next optimizer step waits for the last grade, so what counts is the pool that is done last. A pool that has
    W CPU seconds of work left in the open rounds (the grades that it was asked for and those that running responses will ask for, times
    the CPU seconds of a grade) and gets c CPUs takes W / c. The largest of these quotients is least if they are equal: each pool gets CPUs
    in proportion to its work, within its least and most, and no more than it has grades to run on them at once. That is c = W / T within
    the bounds, for the smallest T whose sum fits into the total.

    **The way there.** A move costs about a second and frees nothing by itself, so CPU is taken only where another pool waits for it: one
    that could use more this moment, and has less than its best division. It gets the difference, first of what no pool has, then of the
    pools that have most beyond their best division. A pool that idles while no other waits keeps what it has: its next grades would wait
    for it to come back. No pool gets more for a gain below LEAST_GAIN or LEAST_GAIN_SECONDS, and none gains or loses less than LEAST_MOVE:
    a load that stays the same, or whose measured cost fluctuates, leads to a division that stays.
    """
    had = _within(total, needs, before)
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


def expected_gain(needs: Mapping[str, PoolNeed], before: Mapping[str, int], after: Mapping[str, int]) -> float:
    """By which share of its time the pool that is done last would be done sooner with the CPUs of `after` than with those of `before`.

    The time is that of `divide`: W / c for the work of the open rounds.
    """
    work = _work(needs)
    slow, fast = (
        max(_seconds(work[name], cpus.get(name, 0), need) for name, need in needs.items()) for cpus in (before, after)
    )
    return 1 - fast / slow if slow else 0.0


def differs(one: Mapping[str, int], other: Mapping[str, int]) -> bool:
    """Whether the two divisions differ by LEAST_MOVE for some pool."""
    return any(abs(one.get(name, 0) - other.get(name, 0)) >= LEAST_MOVE for name in {*one, *other})


def _within(total: int, needs: Mapping[str, PoolNeed], before: Mapping[str, int]) -> dict[str, int]:
    """What pools had, within bounds that may have changed since then."""
    had = {name: min(max(before.get(name, 0), need.least), need.most) for name, need in needs.items()}
    taken = _shared(sum(had.values()) - total, {name: had[name] - need.least for name, need in needs.items()})
    return {name: had[name] - taken.get(name, 0) for name in had}


def _work(needs: Mapping[str, PoolNeed]) -> dict[str, float]:
    """CPU seconds. As long as nothing is known of a pool's grades, they cost as much as those of the others on average."""
    known = [need.cpu_seconds for need in needs.values() if need.cpu_seconds is not None]
    usual = sum(known) / len(known) if known else 1.0
    return {
        name: (need.asked + need.expected) * max(usual if need.cpu_seconds is None else need.cpu_seconds, _LEAST_COST)
        for name, need in needs.items()
    }


def _best(total: int, needs: Mapping[str, PoolNeed], work: Mapping[str, float]) -> dict[str, int]:
    """In proportion to work, within bounds (see `divide`)."""
    most = {name: need.usable_in_round for name, need in needs.items()}
    if sum(most.values()) <= total:
        return most

    def divided(seconds: float) -> dict[str, int]:
        return {
            name: max(int(min(1000 * work[name] / seconds, most[name])), need.least) for name, need in needs.items()
        }

    # Within the shorter time all have their most, within the longer one no pool needs more than its least.
    short = max(min((1000 * work[name] / most[name] for name in needs if work[name]), default=0.0), _LEAST_COST)
    long = max(2 * short, *(1000 * work[name] / max(need.least, 1) for name, need in needs.items()))
    while long > short * _EXACT:
        middle = math.sqrt(short * long)
        if sum(divided(middle).values()) > total:
            short = middle
        else:
            long = middle
    return divided(long)


def _shared(amount: int, spare: Mapping[str, int]) -> dict[str, int]:
    """The amount, if it is positive, in proportion to what each has to spare; no more than all have."""
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
    """What pools gain and lose, so that those that want most get it first, as far as it is `worth` it. `free` is what no pool has."""
    receivers = sorted(wanted, key=lambda name: (-wanted[name], name))
    donors = sorted((name for name in spare if spare[name] >= LEAST_MOVE), key=lambda name: (-spare[name], name))
    gains: dict[str, int] = {}
    left = free + sum(spare[name] for name in donors)
    for name in receivers:
        gain = min(wanted[name], left)
        if worth(name, gain):
            gains[name] = gain
            left -= gain
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
    """How long the work takes with so many millicores."""
    return 1000 * work / max(min(cpu, need.usable_in_round), 1)


def _reason(need: PoolNeed, work: float, had: int, has: int, receivers: str) -> str:
    """Of one pool; `receivers` are those that get what it gives."""
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


@dataclass(frozen=True, slots=True)
class Wait:
    """So many `seconds` of one round were waited for grades alone; the pools had these millicores and used `cpu_seconds` meanwhile."""

    seconds: float
    cpu_seconds: Mapping[str, float]
    pools: Mapping[str, int]

    def price(self, pools: Mapping[str, int]) -> float:
        """Seconds that the slowest pool takes at least for the same CPU seconds with these millicores."""
        return max((1000 * used / max(pools.get(name, 0), 1) for name, used in self.cpu_seconds.items()), default=0.0)


class MeasuredGain:
    """What the last move of CPUs has gained, in time that optimizer steps wait for grades alone: after the last response of a round.

    How long that takes depends on how much there is to grade in which pool. That changes, and is why CPUs move: seconds before and after
    a move can't be compared. So each wait is divided by its price, the seconds that the slowest pool would need at least (W / c, as in
    `divide`) for the CPU seconds W that each pool has used meanwhile. For waits before the move c is what pools had; this says how much
    longer grading takes than that. For those after it c is what pools had before the move; this says how long the same work would have taken
    without it, but for what grading takes longer. The gain is 1 - after / before, the share of their time by which waits are shorter
    than they would have been: 1 - c / c' if one pool, the slowest before and after, got c' instead of c. Below 0 they are longer.

    On each side it is over the last, or first, GAIN_ROUNDS rounds at most in which there was such a wait; the round of the move counts on
    both, in parts. A wait in which no pool has used any CPU says nothing of CPUs.
    """

    def __init__(self) -> None:
        self._pools: Mapping[str, int] = {}
        self._without: Mapping[str, int] = {}
        # The last waits, those before the move and those after it, and the one of this round, which goes on.
        self._last: tuple[Wait, ...] = ()
        self._before: tuple[Wait, ...] = ()
        self._after: tuple[Wait, ...] = ()
        self._seconds, self._used = 0.0, dict[str, float]()

    @property
    def rounds(self) -> int:
        """Over how many rounds after the move it is measured."""
        return len(self._after)

    @property
    def share(self) -> float | None:
        """The gain; None if there was no move, or no wait before it or after it."""
        if not self._before or not self._after:
            return None
        usual = sum(wait.seconds for wait in self._before) / sum(wait.price(wait.pools) for wait in self._before)
        now = sum(wait.seconds for wait in self._after) / sum(wait.price(self._without) for wait in self._after)
        return 1 - now / usual

    def waited(self, seconds: float, cpu_seconds: Mapping[str, float]) -> None:
        """So many seconds more were waited for grades alone, in which each pool used so many CPU seconds."""
        self._seconds += seconds
        for name, used in cpu_seconds.items():
            self._used[name] = self._used.get(name, 0.0) + used

    def moved(self, pools: Mapping[str, int]) -> None:
        """From now on pools have these millicores, and the gain is that of this move. There are no waits before they have any."""
        self.end_round()
        self._without, self._before, self._after = self._pools, self._last, ()
        self._pools = dict(pools)

    def end_round(self) -> None:
        """What is waited from now on belongs to another round."""
        wait = Wait(self._seconds, self._used, self._pools)
        self._seconds, self._used = 0.0, {}
        if self._pools and wait.seconds > 0 and wait.price(self._pools) > 0:
            self._last = (*self._last, wait)[-GAIN_ROUNDS:]
            self._after = (*self._after, wait)[:GAIN_ROUNDS]
