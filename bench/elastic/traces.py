"""`python -m bench.elastic.traces`: Adaptive on simulated traces, from every start size, with right, wrong and no profiles.

Appends to `results/elastic_traces.jsonl` and writes `results/elastic_traces.md` from its newest run. All CPUs, less than an hour.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import exp, inf, log
from multiprocessing import Pool
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

from bench.elastic import trace
from bench.elastic.arms import ADAPTIVE, ARMS, SIZES, SWAPPED, WRONG
from bench.elastic.predictions import COSTS, adaptive, simulated
from bench.elastic.setup import CHANGE_SECONDS, engine_models
from bench.record import RESULTS, Recorder, newest_run
from longboat_runtime.rollout import parallelism
from longboat_runtime.rollout.throughput import Profile
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.simulate.shapes import FixedShape, ShapePlanner

RAW = RESULTS / "elastic_traces.jsonl"

# All have 23 cycles, which are 115 rounds.
TRACES: Mapping[str, trace.Phases] = {
    **{f"median {median}": ((median, 23),) for median in (20, 30, 40, 60, 90)},
    "the benchmark's": trace.PHASES,
    "rising": ((14, 6), (30, 6), (60, 6), (116, 5)),
    "fast": (*((14, 3), (116, 3)) * 3, (14, 3), (116, 2)),
}
EXACT, NONE = "exact", "none"
PROFILES = {EXACT: ADAPTIVE, "x1.3, x0.7, x1.3": WRONG[0], "x0.7, x1.3, x0.7": WRONG[1], "swapped": SWAPPED}
CHOICES = (*PROFILES, NONE)
# Those with which variants of the rule are tried.
ABLATED = (EXACT, "swapped", NONE)
# Of each kind of profile, the bars for Adaptive's speed by that of the best fixed size, and by that of staying in the start size.
BEST = {EXACT: 0.98, NONE: 0.95}
STAYING = 0.98
WRONG_BEST, WORST_START, BENCHMARK = 0.95, 0.90, 1.05


_learned = parallelism.ParallelismPlan._learned


def _forgetting(plan: parallelism.ParallelismPlan, *rest: Any) -> parallelism.ParallelismPlan:
    return _learned(replace(plan, savings={}), *rest)


_alike = parallelism.SimilarRounds.is_similar


def _of_any_kind(rounds: parallelism.SimilarRounds, other: parallelism.SimilarRounds) -> bool:
    return _alike(replace(rounds, kind=other.kind), other)


# The rule without each of its terms, or with another constant: patches of modules of longboat_runtime.rollout.
RULE = "the rule"
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    RULE: {},
    "no evidence beyond what a change costs": {"parallelism.EVIDENCE": 0.0},
    "evidence: 0.2 of a round": {"parallelism.EVIDENCE": 0.2},
    "evidence: 0.8 of a round": {"parallelism.EVIDENCE": 0.8},
    "only the last round is evidence": {"parallelism.ParallelismPlan._learned": _forgetting},
    "rounds of all lengths are similar": {"parallelism.SIMILAR": inf},
    "rounds of all kinds are similar": {"parallelism.SimilarRounds.is_similar": _of_any_kind},
    "only the last similar round counts": {"parallelism.SIMILAR_ROUNDS": 1},
    "similar rounds: the mean": {"parallelism.median": fmean},
    "no trials": {"parallelism.TRIAL_ROUNDS": 10**9},
    "trials after one round": {"parallelism.TRIAL_ROUNDS": 1},
    "trials after four rounds": {"parallelism.TRIAL_ROUNDS": 4},
    "trials: preemptions above 0.25 of the responses": {"parallelism.TRIAL_PREEMPTIONS": 0.25},
    "trials: preemptions above 1 of the responses": {"parallelism.TRIAL_PREEMPTIONS": 1.0},
    "trials at any cost": {"parallelism.TRIAL_COST": inf},
}


@dataclass(frozen=True, slots=True)
class Run:
    """A simulated job: engines start with `start` devices; with `profile` None they keep them."""

    trace: str
    seed: int
    start: int
    profile: str | None = None
    variant: str = RULE


def play(run: Run) -> dict[str, Any]:
    """Simulates a job; returns the seconds of all rounds, those of its long rounds, and how often engines changed between rounds."""
    planner: ShapePlanner = FixedShape(run.start)
    if run.profile is not None:
        arm = PROFILES.get(run.profile)
        planner = adaptive(run.start, Profile(engine_models(ARMS[arm]), COSTS) if arm else None)
    with ExitStack() as patches:
        for name, value in VARIANTS[run.variant].items():
            patches.enter_context(patch(f"longboat_runtime.rollout.{name}", value))
        steps = simulated(planner, trace.Trace(run.seed, TRACES[run.trace]))
    changes = sum(before.tensor_parallel != after.tensor_parallel for before, after in pairwise(steps))
    long = sum(step.seconds for step in steps if step.kind is RoundKind.LONG)
    return {"seconds": sum(step.seconds for step in steps), "long": long, "changes": changes}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.elastic.traces", description=__doc__)
    parser.add_argument("--seeds", type=int, default=4, help="of each trace")
    parser.add_argument("--ablation-seeds", type=int, default=1, help="of each trace, for variants of the rule")
    arguments = parser.parse_args()
    fixed = [Run(*combination) for combination in product(TRACES, range(arguments.seeds), SIZES)]
    adapted = [replace(run, profile=profile) for run, profile in product(fixed, CHOICES)]
    ablated = [
        replace(run, variant=variant)
        for variant, run in product(list(VARIANTS)[1:], adapted)
        if run.seed < arguments.ablation_seeds and run.profile in ABLATED
    ]
    jobs = [*fixed, *adapted, *ablated]
    recorder = Recorder(RAW, seeds=arguments.seeds, ablation_seeds=arguments.ablation_seeds, change=CHANGE_SECONDS)
    with Pool(len(os.sched_getaffinity(0))) as pool:
        for number, (run, result) in enumerate(zip(jobs, pool.imap(play, jobs), strict=True), 1):
            recorder.write("simulated", **{name: getattr(run, name) for name in Run.__slots__}, **result)
            if number % 50 == 0:
                print(f"{number} of {len(jobs)} jobs", flush=True)
    recorder.close()
    write(RAW)


def write(raw: Path) -> None:
    """Writes the tables beside the raw file, from its newest run."""
    lines = newest_run(raw)
    results = {Run(*(line[name] for name in Run.__slots__)): line for line in lines if line["kind"] == "simulated"}
    settings = lines[0]["settings"]
    text = [*_table(results, range(settings["seeds"])), *_ablation(results, range(settings["ablation_seeds"]))]
    raw.with_suffix(".md").write_text("\n".join(text) + "\n")
    print("\n".join(text))


Results = Mapping[Run, Mapping[str, Any]]


def _seconds(results: Results, run: Run, seeds: Sequence[int]) -> float:
    """Returns the geometric mean of a job's seconds over seeds."""
    return exp(fmean(log(results[replace(run, seed=seed)]["seconds"]) for seed in seeds))


def _speeds(results: Results, name: str, profile: str, seeds: Sequence[int], variant: str) -> list[tuple[float, float]]:
    """Returns the speed from each start size, relative to that of the best fixed size and to that of staying."""
    fixed = {size: _seconds(results, Run(name, 0, size), seeds) for size in SIZES}
    taken = {size: _seconds(results, Run(name, 0, size, profile, variant), seeds) for size in SIZES}
    return [(min(fixed.values()) / taken[size], fixed[size] / taken[size]) for size in SIZES]


def _least(profile: str, name: str, fixed: Mapping[int, float], start: int) -> tuple[float, float]:
    """Returns the least speeds on a trace from a start size, relative to the best fixed size and to staying; 0 means no bar."""
    if profile == EXACT:
        return BENCHMARK if name == "the benchmark's" else BEST[EXACT], 0.0
    if profile == NONE:
        return WORST_START if start == max(fixed, key=fixed.__getitem__) else BEST[NONE], STAYING
    return WRONG_BEST, STAYING


def _table(results: Results, seeds: Sequence[int]) -> Iterator[str]:
    yield "# Adaptive parallelism on simulated traces"
    yield ""
    yield (
        "`python -m bench.elastic.traces`: traces of 115 rounds, on the engines of the [elastic benchmark](elastic.md); speeds from start "
        f"sizes {', '.join(map(str, SIZES))}, geometric means over {len(seeds)} seeds. An asterisk: below its bar."
    )
    for title, index in (("by the speed of the best fixed size", 0), ("by the speed of staying in the start size", 1)):
        yield from ("", f"Speed {title}:", "")
        yield f"| trace | fixed {', '.join(map(str, SIZES))} | {' | '.join(CHOICES)} |"
        yield f"|---|---|{'---|' * len(CHOICES)}"
        for name in TRACES:
            fixed = {size: _seconds(results, Run(name, 0, size), seeds) for size in SIZES}
            cells = [" / ".join(f"{min(fixed.values()) / seconds:.3f}" for seconds in fixed.values())]
            for profile in CHOICES:
                speeds = _speeds(results, name, profile, seeds, RULE)
                marked = (
                    f"{speed[index]:.3f}{'*' * (speed[index] < _least(profile, name, fixed, start)[index])}"
                    for start, speed in zip(SIZES, speeds, strict=True)
                )
                cells.append(" / ".join(marked))
            yield f"| {name} | {' | '.join(cells)} |"
    gains = [log(_by_kind(results, name, seeds)) for name in TRACES]
    yield ""
    yield (
        f"The best fixed sizes, one for short and one for long rounds, would be {exp(fmean(gains)) - 1:.1%} faster than the best one size "
        f"for both if changes were free, on average over traces ({exp(max(gains)) - 1:.1%} at most)."
    )
    changes = fmean(result["changes"] for run, result in results.items() if run.profile and run.variant == RULE)
    yield from ("", f"Engines changed {changes:.1f} times in a job, on average.")


def _by_kind(results: Results, name: str, seeds: Sequence[int]) -> float:
    """Returns the speed of the best fixed pair of sizes, for short and for long rounds, by that of the best single size, with free changes."""
    seconds = {size: [results[Run(name, seed, size)] for seed in seeds] for size in SIZES}
    pairs = {
        (short, long): fmean(
            a["seconds"] - a["long"] + b["long"] for a, b in zip(seconds[short], seconds[long], strict=True)
        )
        for short, long in product(SIZES, SIZES)
    }
    return min(pairs[size, size] for size in SIZES) / min(pairs.values())


def _ablation(results: Results, seeds: Sequence[int]) -> Iterator[str]:
    yield from (
        "",
        f"The rule without its terms, and with other constants: means over traces and start sizes, {len(seeds)} seed:",
        "",
    )
    yield f"| variant | {' | '.join(ABLATED)} | all |"
    yield f"|---|{'---|' * (len(ABLATED) + 1)}"
    for variant in VARIANTS:
        means = []
        for profile in ABLATED:
            speeds = [speed for name in TRACES for speed, _ in _speeds(results, name, profile, seeds, variant)]
            means.append(exp(fmean(map(log, speeds))))
        yield f"| {variant} | {' | '.join(f'{value:.3f}' for value in (*means, exp(fmean(map(log, means)))))} |"


if __name__ == "__main__":
    main()
