"""Simulates Synchronous and TailBatching rounds of the same episodes, of one turn and of four. Takes a few minutes of one CPU."""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

from bench.record import Recorder
from longboat_runtime.rounds.policy import Policy
from longboat_runtime.rounds.synchronous import Synchronous
from longboat_runtime.rounds.tail_batching import TailBatching
from longboat_runtime.simulate.curve import StepCurve
from longboat_runtime.simulate.lengths import TwoLevel
from longboat_runtime.simulate.simulation import simulate
from longboat_runtime.simulate.site import Site
from longboat_runtime.simulate.turns import TwoLevelTurns

PROMPTS, GROUP_SIZE, PROMPT_OVERCOMMIT = 16, 8, 1.25
# Eight periods of four short rounds and a long one.
STEPS = 40
TURNS = (1, 4)
# The mean tokens and seconds of an episode don't depend on its number of turns. These are the medians of a single turn, whose tokens
# take some 12 s on these engines; none has more than LIMIT times as many.
TOKENS, SECONDS, LIMIT = 400, {"seldom": 1.0, "mostly": 60.0}, 32
# As in bench/rounds, from published rounds; seconds get the same spread.
PROMPT_SIGMA, TURN_SIGMA = 0.9, 0.6
# Episodes that play at once: those of a synchronous round, or all.
SLOTS = (PROMPTS * GROUP_SIZE, None)
ENGINES, CURVE = 2, StepCurve((1, 256), (0.020, 0.050))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `make bench NAME=turns`."""
    parser.add_argument("--seeds", type=int, default=5, help="runs of each policy and case, 2 or more")
    parser.add_argument("--steps", type=int, default=STEPS, help="optimizer steps of a run")


def run(arguments: argparse.Namespace, path: Path) -> None:
    """Appends a line for each policy, case and seed to `path`."""
    recorder = Recorder(path, steps=arguments.steps, seeds=arguments.seeds)
    for away, turns, slots in product(SECONDS, TURNS, SLOTS):
        for seed, policy in product(range(arguments.seeds), policies()):
            site = Site(CURVE, engines=ENGINES, slots=slots)
            samples = episodes(turns, SECONDS[away], seed)
            # The job is longer than what is simulated, so that the queue isn't drained at the end.
            steps = arguments.steps
            ran = simulate(policy, GROUP_SIZE, site, samples, 2 * steps, most_steps=steps)
            recorder.write(
                "simulated",
                policy=type(policy).__name__,
                away=away,
                turns=turns,
                slots=slots,
                seed=seed,
                rollout_per_round=ran.rollout_per_round,
                generated_to_kept=ran.generated_to_kept,
                long_share=ran.long_share,
            )
        print(f"away {away}, {turns} turns, {slots or 'unlimited'} slots: done", flush=True)
    recorder.close()


def policies() -> tuple[Policy, ...]:
    """Returns the policies that are compared."""
    return (
        Synchronous(PROMPTS, GROUP_SIZE),
        TailBatching(
            prompts_per_round=PROMPTS,
            group_size=GROUP_SIZE,
            prompt_overcommit=PROMPT_OVERCOMMIT,
            sample_overcommit=1.0,
        ),
    )


def episodes(turns: int, seconds: float, seed: int) -> TwoLevelTurns:
    """Returns episodes of so many turns. A single turn has medians TOKENS and `seconds`; of more turns, each has its part of them."""
    return TwoLevelTurns(
        turns=TwoLevel(turns, 0.0, 0.0, turns),
        tokens=TwoLevel(TOKENS / turns, PROMPT_SIGMA, TURN_SIGMA, LIMIT * TOKENS // turns, 2 * seed),
        seconds=TwoLevel(seconds / turns, PROMPT_SIGMA, TURN_SIGMA, round(LIMIT * seconds / turns), 2 * seed + 1),
        max_tokens=LIMIT * TOKENS,
    )
