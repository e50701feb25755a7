"""The roofline's constants, fitted to four published cells: `python -m bench.elastic.published` simulates that setup and compares.

RollPacker (arXiv:2509.21009) gives seconds of rollout and preemptions for Qwen3-8B on 8 H800, with 128 prompts a round and responses of up
to 32k tokens, in short and in long rounds, with engines of one and of two devices. It doesn't say, and here is assumed:

* 8 responses to a prompt, both overcommit factors 1.25 (1.56 times the requests in short rounds), as in the paper's other experiments;
* prompts of 200 tokens; log-normal lengths, prompt effect x sample effect, of a model that thinks (LENGTHS);
* a long round trains what four short ones deferred; the seconds of a cell are the mean over its rounds and seeds;
* how much of a device's 80 GB engines have beside the trainer (`memory`), and what of its bandwidth and compute is reached.

Each response goes to the engine with the fewest, as there; the project's router keeps the responses to a prompt together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from unittest.mock import patch

from bench.elastic.roofline import Roofline
from longboat_runtime.rollout import router
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.rounds.tail_batching import TailBatching
from longboat_runtime.simulate.lengths import TwoLevel
from longboat_runtime.simulate.shapes import FixedShape, Shapes
from longboat_runtime.simulate.simulation import simulate
from longboat_runtime.simulate.site import Site

PARAMETERS = 8.2e9
# bfloat16; 36 layers, 8 key heads of 128.
H800 = Roofline(
    memory=29.2e9,
    bandwidth=0.7 * 3.35e12,
    compute=600e12,
    weights=2 * PARAMETERS,
    kv_token=2 * 36 * 8 * 128 * 2,
    token_operations=2 * PARAMETERS,
    latency=0.0049,
    all_reduce=0.0088,
)
LONGEST, PROMPT_TOKENS = 32_000, 200
LENGTHS = TwoLevel(5860, 0.28, 0.39, LONGEST)
DEVICES, PROMPTS, GROUP_SIZE = 8, 128, 8
SEEDS = (1, 2, 3)

Cell = tuple[RoundKind, int]
SECONDS: Mapping[Cell, float] = {
    (RoundKind.SHORT, 1): 1029,
    (RoundKind.SHORT, 2): 768,
    (RoundKind.LONG, 1): 1172,
    (RoundKind.LONG, 2): 1284,
}
PREEMPTIONS: Mapping[Cell, int] = {
    (RoundKind.SHORT, 1): 5199,
    (RoundKind.SHORT, 2): 4102,
    (RoundKind.LONG, 1): 2900,
    (RoundKind.LONG, 2): 2601,
}
# A fifth round is the first long one.
_STEPS = 5


@dataclass(frozen=True, slots=True)
class Fitted:
    """Means of a cell over seeds and rounds."""

    seconds: float
    preemptions: float


def cells(roofline: Roofline = H800, lengths: TwoLevel = LENGTHS) -> dict[Cell, Fitted]:
    """Simulates the four cells; returns the means of each over seeds and rounds."""
    outcomes: dict[Cell, list[tuple[float, float]]] = {cell: [] for cell in SECONDS}
    for size in (1, 2):
        shapes = Shapes(
            {size: roofline.engine_model(size, LONGEST + PROMPT_TOKENS)},
            FixedShape(size),
            DEVICES,
            batched_tokens=LONGEST + PROMPT_TOKENS,
        )
        site = Site(shapes=shapes, graders=64, prompt_tokens=PROMPT_TOKENS)
        for seed in SEEDS:
            policy = TailBatching(
                prompts_per_round=PROMPTS, group_size=GROUP_SIZE, prompt_overcommit=1.25, sample_overcommit=1.25
            )
            of_seed = TwoLevel(lengths.median, lengths.prompt_sigma, lengths.sample_sigma, lengths.longest, seed)
            with patch.object(router, "IMBALANCE", 1):
                run = simulate(policy, GROUP_SIZE, site, of_seed, 10 * _STEPS, most_steps=_STEPS)
            for step in run.steps:
                outcomes[step.kind, size].append((step.rollout, step.preemptions))
    return {
        cell: Fitted(*(sum(column) / len(values) for column in zip(*values, strict=True)))
        for cell, values in outcomes.items()
    }


def main() -> None:
    """Prints a line for each cell."""
    for (kind, size), fitted in cells().items():
        published = SECONDS[kind, size]
        print(
            f"{kind} TP{size}: {fitted.seconds:.0f} s, published {published:.0f} ({fitted.seconds / published - 1:+.1%}); "
            f"preemptions {fitted.preemptions:.0f}, published {PREEMPTIONS[kind, size]}",
            flush=True,
        )


if __name__ == "__main__":
    main()
