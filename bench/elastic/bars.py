"""What was to be shown, and whether blocks show it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any

from bench.elastic.arms import ADAPTIVE, FIXED, SWAPPED, WRONG
from bench.elastic.oracle import Oracle, Situation, oracle
from bench.elastic.trace import Trace
from bench.rounds.estimates import Estimate, mean

# Seconds of a block by arm and seed, those of void blocks left out.
Seconds = Mapping[str, Mapping[int, float]]


@dataclass(frozen=True, slots=True)
class Bar:
    """`what` had to be at least `least`; it is `value`, None where blocks are missing. `shown` has it with its interval, or says so."""

    what: str
    least: float
    value: float | None
    shown: str = ""
    passed: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """Holds the results of a run: `seconds` of all rounds of each block, the `best` fixed arm, the `oracle` on its seeds, and the bars.

    `against_late_oracle` is Adaptive's speed by that of an oracle that learns of each phase from its first round.
    """

    seconds: Seconds
    best: str
    oracle: Oracle | None
    oracle_seeds: Sequence[int]
    bars: Sequence[Bar]
    against_late_oracle: Estimate | None = None


def valid(blocks: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], Mapping[str, Any]]:
    """Returns the blocks that aren't void, by arm and seed; of several, the last one."""
    return {(block["arm"], block["seed"]): block for block in blocks if not block["void"]}


def situations(block: Mapping[str, Any], lengths: Trace) -> list[Situation]:
    """Returns the phase of each round, and whether it is a long one."""
    return [(lengths.phase(step), bool(long)) for step, long in enumerate(block["long"], 1)]


def judge(blocks: Sequence[Mapping[str, Any]], lengths: Trace, change: float) -> Result:
    """Judges the blocks by all bars. There has to be a block of a fixed arm. A bar of which blocks are missing doesn't pass."""
    by_key = valid(blocks)
    seconds: dict[str, dict[int, float]] = {}
    for (arm, seed), block in sorted(by_key.items()):
        seconds.setdefault(arm, {})[seed] = sum(block["seconds"])
    fixed = {arm: seconds[arm] for arm in FIXED if arm in seconds}
    common = sorted(set.intersection(*(set(by_seed) for by_seed in fixed.values())))
    best = min(fixed, key=lambda arm: sum(fixed[arm][seed] for seed in common))
    best_choice = None
    if common and len(fixed) == len(FIXED):
        rounds_situations = situations(by_key[best, common[0]], lengths)
        if all(situations(by_key[arm, seed], lengths) == rounds_situations for arm in fixed for seed in common):
            rounds = {FIXED[arm]: [by_key[arm, seed]["seconds"] for seed in common] for arm in fixed}
            best_choice = oracle(rounds_situations, rounds, change)
    against_oracle = dict(zip(common, best_choice.seconds, strict=True)) if best_choice else {}
    bars = [
        _bar("the oracle's speed by that of the best fixed size", 1.10, fixed[best], against_oracle),
        _bar("Adaptive's speed by the oracle's", 0.95, against_oracle, seconds.get(ADAPTIVE, {})),
        _bar(
            "Adaptive's speed by that of the best fixed size", 1.05, fixed[best], seconds.get(ADAPTIVE, {}), above=1.0
        ),
        *(
            _bar(f"{arm}: its speed by that of the best fixed size", 0.95, fixed[best], seconds.get(arm, {}))
            for arm in (*WRONG, SWAPPED)
        ),
    ]
    late = dict(zip(common, best_choice.late_seconds, strict=True)) if best_choice else {}
    return Result(seconds, best, best_choice, common, bars, paired(late, seconds.get(ADAPTIVE, {})))


def _bar(
    what: str, least: float, slower: Mapping[int, float], faster: Mapping[int, float], above: float | None = None
) -> Bar:
    """Judges the geometric mean ratio of `slower` to `faster`, seconds by seed. Its interval has to begin above `above`, if given."""
    ratio = paired(slower, faster)
    if ratio is None:
        return Bar(what, least, None, "blocks are missing")
    passed = ratio.value >= least and (above is None or ratio.low > above)
    return Bar(what, least, ratio.value, ratio.text(), passed)


def paired(slower: Mapping[int, float], faster: Mapping[int, float]) -> Estimate | None:
    """Computes the geometric mean ratio over the seeds that both have, with its 95 % interval by Student's t; None with fewer than two."""
    seeds = sorted(slower.keys() & faster.keys())
    if len(seeds) < 2:
        return None
    logs = mean([log(slower[seed] / faster[seed]) for seed in seeds])
    return Estimate(exp(logs.value), exp(logs.low), exp(logs.high), logs.count)
