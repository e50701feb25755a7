"""Random harnesses at the recorder: what is trained, and what a replay draws."""

from collections import Counter

import pytest

from longboat_runtime.recorder.record import Beginning
from tests.recorder.harnesses import APPENDING, check, played


def play_all(templates: tuple[str, ...], seeds: range) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in seeds:
        harness, recording = played(templates[seed % len(templates)], seed)
        check(harness, recording)
        counts.update(harness.counts)
        counts.update(exchange.beginning for exchange in recording.exchanges if exchange.beginning)
        counts["continued"] += sum(turn.continues is not None for turn in recording.turns)
        counts["delivered"] += len(recording.turns)
    return counts


def test_each_delivered_turn_is_trained_once_in_its_own_context() -> None:
    counts = play_all(APPENDING, range(200))
    assert all(counts[kind] for kind in ("compact", "branch", "rewrite", "retry", "given up", "parallel"))
    assert counts["refused"] < 0.1 * counts["answered"]
    assert counts["continued"] > 0.5 * counts["delivered"]
    assert not counts[Beginning.TEMPLATE]


@pytest.mark.extended
@pytest.mark.parametrize("tenth", range(10))
def test_ten_thousand_harnesses(tenth: int) -> None:
    counts = play_all(APPENDING, range(1000 * tenth, 1000 * (tenth + 1)))
    print(sorted(counts.items()))
    assert not counts[Beginning.TEMPLATE]


def test_a_replay_draws_the_same() -> None:
    for seed in range(40):
        first, again = (played(APPENDING[seed % len(APPENDING)], seed)[0].client.engine.drawn for _ in range(2))
        assert [(turn.prompt_ids.tolist(), turn.seed, ids) for turn, ids in first] == [
            (turn.prompt_ids.tolist(), turn.seed, ids) for turn, ids in again
        ]
