"""What the rounds benchmark reads out of a job's log, and how arms are compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.rounds.block import ended, fates, generated_tokens, stopped, trained_tokens
from bench.rounds.compare import accuracy, distribution, longer, measured
from bench.rounds.recorded import Recorded
from bench.rounds.summary import write
from longboat_runtime.rounds import events
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.samples import FinishReason, PromptId, SampleId, VersionSpan

FIRST, SECOND = PromptId(0, 4), PromptId(0, 7)


def generated(sample: SampleId, tokens: int) -> events.Generated:
    return events.Generated(sample, 5, tokens, FinishReason.STOP, (VersionSpan(0, 0, tokens),), "engine-0")


def sample(prompt: PromptId, index: int, attempt: int = 0) -> SampleId:
    return SampleId(*prompt, attempt, index)


LOG: list[events.Body] = [
    events.Drawn(0, (FIRST, SECOND)),
    events.RoundOpened(1, RoundKind.SHORT, 0, racing=True),
    events.Launched(1, FIRST, 0, 2),
    events.Launched(1, SECOND, 0, 2),
    generated(sample(FIRST, 0), 10),
    generated(sample(SECOND, 1), 12),
    generated(sample(FIRST, 1), 30),
    events.Stopped(sample(SECOND, 0), 33, "engine-1"),
    events.StepCommitted(1, 1, 1, (sample(FIRST, 0), sample(FIRST, 1))),
]


def test_a_log_says_what_became_of_every_response() -> None:
    block = fates(LOG)
    assert block["drawn"] == [[0, 4], [0, 7]]
    assert trained_tokens(block) == {FIRST: [10, 30]}
    assert generated_tokens(block) == 10 + 12 + 30 + 33
    assert set(ended(block)) == {sample(FIRST, 0), sample(FIRST, 1), sample(SECOND, 1)}
    assert stopped(block) == {sample(SECOND, 0): 33}


@pytest.mark.parametrize("longest", [30, 50])
def test_recorded_lengths_are_those_of_the_log(longest: int) -> None:
    again = [events.Launched(2, SECOND, 1, 2), generated(sample(SECOND, 0, attempt=1), longest)]
    distribution = Recorded.from_block(fates([*LOG, *again]), lambda _: 7)
    assert distribution(sample(FIRST, 1)) == 30
    assert distribution(sample(SECOND, 0)) == max(34, longest), "it had 33 when it was stopped"
    assert distribution(sample(SECOND, 0, attempt=1)) == longest
    assert distribution(sample(FIRST, 0, attempt=1)) == 7, "it was never launched"


def block_of(tokens: dict[int, list[int]], rollout: float, right: list[int]) -> dict[str, Any]:
    """Tokens of trained responses by row, in one round; scores of two answers to each of four held-out prompts."""
    groups = [[0, row, 0, lengths, [*range(len(lengths))]] for row, lengths in tokens.items()]
    return {
        "drawn": [[0, row] for row in tokens],
        "groups": groups,
        "rollout": [rollout],
        "step": [2 * rollout],
        "long": [0.0],
        "held_out": [(number // 2, 10 * (number // 2 + 1), score) for number, score in enumerate(right)],
    }


BLOCKS = {
    ("Synchronous", 0): block_of({1: [10, 10], 2: [20, 40]}, 8.0, [1, 1, 1, 1, 0, 0, 1, 1]),
    ("TailBatching-1.25", 0): block_of({2: [20, 20], 3: [5, 5]}, 4.0, [1, 1, 1, 1, 0, 0, 0, 1]),
}


def test_an_arm_is_compared_by_trained_sample_and_on_the_prompts_that_both_trained() -> None:
    found = measured(BLOCKS, "TailBatching-1.25")
    assert (found.rollout, found.step) == (1.0, 2.0)
    assert (found.rollout_faster, found.step_faster) == ([2.0], [2.0])
    assert found.generated_to_kept == 1.0
    assert found.length.value == pytest.approx(20 / 30)


def test_accuracy_is_paired_by_seed_and_the_longest_are_those_of_the_baseline() -> None:
    blocks = {
        **BLOCKS,
        ("Synchronous", 1): block_of({}, 8.0, [0, 0, 0, 0, 0, 0, 1, 0]),
        ("TailBatching-1.25", 1): block_of({}, 8.0, [1, 0, 0, 0, 1, 0, 1, 1]),
    }
    found = accuracy(blocks, "TailBatching-1.25")
    assert found.by_seed == [pytest.approx(-1 / 8), pytest.approx(3 / 8)]
    assert found.overall.value == pytest.approx(1 / 8)
    assert found.overall.count == 2
    assert found.longest.value == pytest.approx((-1 / 2 + 1 / 2) / 2), "the fourth prompt has the longest answers"
    assert (found.answers, found.long_answers) == (16, 4)
    unpaired = {**blocks, ("Synchronous", 2): block_of({}, 8.0, [0] * 8)}
    assert accuracy(unpaired, "TailBatching-1.25") == found, "a seed that the arm doesn't have"


def test_the_law_of_lengths_is_the_baselines() -> None:
    found = distribution(BLOCKS, prompts=2)
    assert (found.median, found.mean, found.longest_by_median) == (15.0, 20.0, 40 / 15)


def test_two_arms_are_compared_on_the_prompts_that_they_and_the_baseline_trained() -> None:
    blocks = {**BLOCKS, ("other", 0): block_of({2: [10, 12], 3: [1, 1]}, 4.0, [])}
    found = longer(blocks, "TailBatching-1.25", "other")
    assert found is not None
    assert (found.value, found.count) == (pytest.approx((11 - 20) / 30), 1)
    assert longer(BLOCKS, "TailBatching-1.25", "other") is None


def test_the_page_is_headed_by_the_newest_run_whatever_its_task(tmp_path: Path) -> None:
    def run(torch: str) -> dict[str, Any]:
        machine = {"processor": "p", "cpus": 2, "memory_gib": 4.0}
        settings = {name: {"drawn": 2, "device": 2} for name in ("prompts", "steps")}
        return {"kind": "run", "commit": "abc", "machine": machine, "versions": {"torch": torch}, "settings": settings}

    def block(task: str) -> dict[str, Any]:
        found = BLOCKS["Synchronous", 0] | {"curve": {"1": [10, 0.1], "2": [10, 0.2]}}
        return {"kind": "block", "task": task, "arm": "Synchronous", "seed": 0, **found}

    raw = tmp_path / "rounds.jsonl"
    lines = [run("2.0"), block("device"), run("2.1"), block("drawn")]
    raw.write_text("".join(json.dumps(line) + "\n" for line in lines))
    write(raw)
    text = raw.with_suffix(".md").read_text()
    assert "p, 2 CPUs, 4.0 GiB. torch 2.1." in text
    assert text.index("## drawn") < text.index("## device")
