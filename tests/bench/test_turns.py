"""The table compares both policies on the same seeds."""

from __future__ import annotations

from itertools import product

from bench.turns.measure import SECONDS, SLOTS, TURNS
from bench.turns.summary import table

ROUNDS = {"Synchronous": (100.0, 200.0), "TailBatching": (60.0, 100.0)}


def test_what_is_saved_is_a_mean_over_seeds() -> None:
    simulated = [
        {
            "kind": "simulated",
            "policy": policy,
            "away": away,
            "turns": turns,
            "slots": slots,
            "seed": seed,
            "rollout_per_round": seconds,
            "generated_to_kept": 1.5,
        }
        for away, turns, slots in product(SECONDS, TURNS, SLOTS)
        for policy, rounds in ROUNDS.items()
        for seed, seconds in enumerate(rounds)
    ]
    run = {"kind": "run", "settings": {"steps": 40, "seeds": 2}, "commit": "abc"}
    rows = [line for line in table([run, *simulated]).splitlines() if line.startswith(("| seldom", "| mostly"))]
    assert len(rows) == len(SECONDS) * len(TURNS) * len(SLOTS)
    assert {row.split(" | ", 3)[3] for row in rows} == {"150 s | 80 s | 45% ± 5% | 1.50 |"}
