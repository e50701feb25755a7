"""The pure parts of the elastic benchmark: roofline, trace, pace, oracle and bars."""

from __future__ import annotations

import json
from collections.abc import Set
from dataclasses import astuple, replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.elastic import trace, traces
from bench.elastic.arms import ADAPTIVE, ARMS, FIXED, SIZES
from bench.elastic.bars import judge, paired
from bench.elastic.block import rounds_of
from bench.elastic.oracle import oracle
from bench.elastic.paced import Pace, Punctuality, RandomModel
from bench.elastic.predictions import predicted
from bench.elastic.published import H800
from bench.elastic.setup import CHANGE_SECONDS, CONTEXT, ROOFLINE, engine_models
from longboat_runtime.rounds import events, measurements
from longboat_runtime.rounds.events import Event
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.samples import SampleId


def test_a_roofline_reads_weights_and_cache_or_computes():
    seconds = H800.step_seconds(1, 1, 0)
    assert seconds == pytest.approx(H800.latency + H800.weights / H800.bandwidth)
    assert H800.step_seconds(1, 1, 10_000) - seconds == pytest.approx(10_000 * H800.kv_token / H800.bandwidth)
    many = 10**6
    assert H800.step_seconds(1, many, 0) == pytest.approx(H800.latency + many * H800.token_operations / H800.compute)
    again = H800.step_seconds(2, 1, 0, 500) - H800.step_seconds(2, 1, 0)
    assert again == pytest.approx(500 * H800.token_operations / (2 * H800.compute))


def test_more_devices_wait_longer_for_each_other_and_have_more_than_their_share_of_cache():
    bare = H800.weights / H800.bandwidth
    assert H800.step_seconds(2, 1, 0) == pytest.approx(H800.latency + H800.all_reduce + bare / 2)
    assert H800.step_seconds(4, 1, 0) == pytest.approx(H800.latency + 1.5 * H800.all_reduce + bare / 4)
    assert H800.kv_tokens(2) > 2 * H800.kv_tokens(1)
    assert H800.kv_tokens(4) > 2 * H800.kv_tokens(2)


@given(st.sampled_from(SIZES), st.integers(1, 200), st.integers(1, 200), st.integers(0, 300))
def test_rounds_of_the_smaller_job_take_pace_times_as_long(size: int, sequences: int, context: int, computed: int):
    small = H800.scaled(sequences=2, tokens=64, pace=0.01)
    there = 64 * H800.step_seconds(size, 2 * sequences, 2 * 64 * sequences * context)
    there += 2 * 64 * computed * H800.prefill_seconds(size)
    assert small.step_seconds(size, sequences, sequences * context, computed) == pytest.approx(0.01 * there)
    assert small.kv_tokens(size) == pytest.approx(H800.kv_tokens(size) / 128, abs=1)


@given(st.sampled_from(SIZES), st.integers(1, 256), st.integers(16, CONTEXT))
def test_planner_and_simulator_get_the_same_roofline(size: int, sequences: int, context: int):
    # Tables are linear between their cells, a roofline has a bend where compute takes over.
    model = engine_models()[size]
    exact = ROOFLINE.step_seconds(size, sequences, sequences * context)
    assert model.step_seconds(sequences, sequences * context) == pytest.approx(exact, rel=0.05)


def test_wrong_profiles_are_wrong_for_sizes_relative_to_each_other():
    right = engine_models()
    for name, arm in ARMS.items():
        models = engine_models(arm)
        factors = {size: models[size].seconds[3][1] / right[size].seconds[3][1] for size in SIZES}
        if arm.wrong:
            assert factors == pytest.approx(dict(arm.wrong))
            assert factors[1] != factors[2] != factors[4], name
        if arm.swapped:
            assert (models[1], models[2], models[4]) == (right[2], right[1], right[4])


def test_an_engine_of_every_size_holds_the_longest_sequence():
    assert min(ROOFLINE.kv_tokens(size) for size in SIZES) >= CONTEXT


def test_lengths_follow_the_trace_by_row_whatever_is_launched_when():
    lengths = trace.Trace(3, ((10, 2), (100, 1), (10, 2)))
    per_cycle = trace.PROMPTS_PER_CYCLE

    def median(cycle: int) -> float:
        rows = range(cycle * per_cycle, (cycle + 1) * per_cycle)
        found = sorted(lengths(SampleId(0, row, 0, index)) for row in rows for index in range(4))
        return found[len(found) // 2]

    medians = [median(cycle) for cycle in range(5)]
    assert max(medians[:2] + medians[3:]) < 20
    assert 60 < medians[2] < 160
    assert lengths(SampleId(0, 5, 0, 1)) == trace.Trace(3, lengths.phases)(SampleId(0, 5, 0, 1))
    assert [lengths.phase(step) for step in (1, 10, 11, 15, 16, 25)] == [0, 0, 1, 1, 2, 2]
    assert lengths.rounds == 25


def scheduled(
    new: dict[str, int], running: dict[str, int], *, prompt: int = 99, finished: Set[str] = frozenset()
) -> Any:
    """Makes what vLLM's scheduler returns: tokens to compute of new requests; tokens of running ones, each of which gets one more."""
    prompt_ids = [5] * prompt
    return SimpleNamespace(
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, num_computed_tokens=0, prompt_token_ids=prompt_ids) for name in new
        ],
        scheduled_cached_reqs=SimpleNamespace(req_ids=[*running], num_computed_tokens=[*running.values()]),
        num_scheduled_tokens={**new, **dict.fromkeys(running, 1)},
        finished_req_ids=finished,
    )


def test_a_step_lasts_what_is_stated_for_what_the_scheduler_put_into_it():
    pace = Pace(ROOFLINE, 2)
    pace.scheduled(scheduled({"a": 6}, {"b": 99, "c": 49}))
    assert pace.stated == pytest.approx(ROOFLINE.step_seconds(2, 3, 6 + 100 + 50, 5))


def test_a_token_is_drawn_once_all_tokens_of_a_request_have_been_computed():
    model = RandomModel(264)

    def drawn(computed: int, count: int) -> bool:
        output = scheduled({}, {"a": computed})
        output.num_scheduled_tokens = {"a": count}
        return len(model.draw(output)["a"]) == 1

    assert model.draw(scheduled({"a": 6}, {}, prompt=10)) == {"a": []}
    assert drawn(6, 4)
    assert drawn(10, 1)
    # After a preemption the drawn tokens are computed again, too.
    assert not drawn(0, 11)
    assert drawn(11, 1)
    # A later request of the same name begins with its prompt.
    assert len(model.draw(scheduled({"a": 10}, {}, prompt=10, finished={"a"}))["a"]) == 1


def test_responses_to_a_prompt_have_tokens_of_their_own():
    model = RandomModel(264)
    model.draw(scheduled({"a": 10, "b": 10}, {}, prompt=10))
    drawn = [model.draw(scheduled({}, {"a": length, "b": length})) for length in range(10, 30)]
    assert [tokens["a"] for tokens in drawn] != [tokens["b"] for tokens in drawn]


def test_a_step_ends_at_its_stated_time_and_a_late_one_is_counted():
    now = 100.0

    def sleep_until(end: float) -> None:
        nonlocal now
        now = max(now, end)

    def step(seconds: float) -> str:
        nonlocal now
        pace.scheduled(scheduled({}, {"a": 10}))
        now += seconds
        return "outputs"

    pace = Pace(ROOFLINE, 1, lambda: now, sleep_until)
    stated = ROOFLINE.step_seconds(1, 1, 11)
    assert pace.step(lambda: step(0.25 * stated)) == "outputs"
    assert now == pytest.approx(100.0 + stated)
    assert astuple(pace.punctuality) == pytest.approx((1, 0, stated, stated, 0.25 * stated))
    now += 0.5 * stated
    # It began late, but ends on time.
    pace.step(lambda: step(0.25 * stated))
    assert now == pytest.approx(100.0 + 2 * stated)
    assert (pace.punctuality.steps, pace.punctuality.late) == (2, 0)
    pace.step(lambda: step(2 * stated))
    assert (pace.punctuality.steps, pace.punctuality.late) == (3, 1)
    # The next one is counted from that end, and one after a rest from its own beginning.
    pace.step(lambda: step(0.0))
    assert now == pytest.approx(100.0 + 5 * stated)
    now += 10 * stated
    pace.rested()
    pace.step(lambda: step(0.0))
    assert now == pytest.approx(100.0 + 16 * stated)
    assert (pace.punctuality.steps, pace.punctuality.late) == (5, 1)


def test_a_block_in_which_more_than_one_step_in_a_hundred_was_late_is_void():
    assert not Punctuality(steps=1000, late=10).void
    assert Punctuality(steps=1000, late=11).void
    assert (Punctuality(100, 1, 2.0, 2.5) + Punctuality(50, 0, 1.0, 1.0)) == Punctuality(150, 1, 3.0, 3.5)


SITUATIONS = [(0, False), (0, False), (0, True), (1, False), (1, False), (1, True)]


def test_the_oracle_takes_the_best_size_of_each_situation_if_changes_cost_nothing():
    seconds = {1: [[1, 1, 4, 9, 9, 3]], 2: [[2, 2, 5, 3, 3, 7]]}
    known = oracle(SITUATIONS, seconds, 0.0)
    assert known.sizes == {(0, False): 1, (0, True): 1, (1, False): 2, (1, True): 1}
    assert known.seconds == [1 + 1 + 4 + 3 + 3 + 3]
    assert known.changes == 2


def test_the_oracle_pays_for_changes():
    seconds = {1: [[1, 1, 4, 9, 9, 3]], 2: [[2, 2, 5, 3, 3, 7]]}
    assert oracle(SITUATIONS, seconds, 4.0).changes == 1
    assert oracle(SITUATIONS, seconds, 100.0).changes == 0
    assert oracle(SITUATIONS, seconds, 100.0).seconds == [2 + 2 + 5 + 3 + 3 + 7]


def test_who_learns_of_a_phase_by_its_first_round_has_the_size_of_the_phase_before_in_it():
    seconds = {1: [[1, 1, 4, 9, 9, 3]], 2: [[2, 2, 5, 3, 3, 7]]}
    known = oracle(SITUATIONS, seconds, 0.5)
    assert known.sizes == {(0, False): 1, (0, True): 1, (1, False): 2, (1, True): 1}
    assert known.seconds == [1 + 1 + 4 + 0.5 + 3 + 3 + 0.5 + 3]
    assert known.late_seconds == [1 + 1 + 4 + 9 + 0.5 + 3 + 0.5 + 3]


@given(st.lists(st.lists(st.floats(0.1, 10), min_size=6, max_size=6), min_size=4, max_size=4), st.floats(0, 5))
def test_no_fixed_size_beats_the_oracle(rows: list[list[float]], change: float):
    seconds = {1: rows[:2], 2: rows[2:]}
    known = oracle(SITUATIONS, seconds, change)
    assert sum(known.seconds) <= min(sum(map(sum, runs)) for runs in seconds.values()) + 1e-9


def block(arm: str, seed: int, seconds: list[float], *, void: bool = False) -> dict[str, Any]:
    long = [number % 5 == 4 for number in range(len(seconds))]
    return {"arm": arm, "seed": seed, "seconds": seconds, "long": long, "void": void}


LENGTHS = trace.Trace(0, ((10, 1), (100, 1)))


def blocks(slower: float = 1.0) -> list[dict[str, Any]]:
    """Two phases of a cycle each: one device is best in the first, four are in the second."""
    made = []
    for seed in range(3):
        near = 1 + 0.01 * seed
        made += [
            block("TP1", seed, [near] * 5 + [2 * near] * 5),
            block("TP2", seed, [1.3 * near] * 5 + [1.3 * near] * 5),
            block("TP4", seed, [1.6 * near] * 5 + [near] * 5),
            block(ADAPTIVE, seed, [1.02 * near * slower] * 10),
        ]
    return made


def test_bars_are_judged_against_the_best_fixed_size_and_the_oracle():
    result = judge(blocks(), LENGTHS, change=0.1)
    assert result.best in ("TP2", "TP4")
    passed = {bar.what: bar.passed for bar in result.bars}
    assert passed["the oracle's speed by that of the best fixed size"]
    assert passed["Adaptive's speed by the oracle's"]
    assert passed["Adaptive's speed by that of the best fixed size"]
    assert not passed["Adaptive, TP1 and TP2 swapped: its speed by that of the best fixed size"], "it wasn't run"


def test_a_slow_planner_misses_its_bars():
    passed = {bar.what: bar.passed for bar in judge(blocks(1.3), LENGTHS, change=0.1).bars}
    assert not passed["Adaptive's speed by the oracle's"]
    assert not passed["Adaptive's speed by that of the best fixed size"]


def test_a_bar_needs_its_interval_too():
    made = blocks()
    for of in made:
        if of["arm"] == ADAPTIVE and of["seed"] == 0:
            of["seconds"] = [1.6] * 10
    bar = next(
        bar
        for bar in judge(made, LENGTHS, change=0.1).bars
        if bar.what.endswith("the best fixed size") and bar.least == 1.05
    )
    assert not bar.passed


def test_void_blocks_say_nothing_and_are_replaced_by_later_ones():
    made = [block(ADAPTIVE, 0, [99.0] * 10, void=True), *blocks()]
    result = judge(made, LENGTHS, change=0.1)
    assert result.seconds[ADAPTIVE][0] == pytest.approx(10.2)
    made = [of for of in made if not (of["arm"] == ADAPTIVE and of["seed"] == 0 and not of["void"])]
    assert 0 not in judge(made, LENGTHS, change=0.1).seconds[ADAPTIVE]


def test_ratios_are_paired_by_seed():
    assert paired({0: 2.0}, {0: 1.0}) is None
    ratio = paired({0: 2.0, 1: 20.0, 7: 5.0}, {0: 1.0, 1: 10.0})
    assert ratio is not None
    assert (ratio.value, ratio.low, ratio.high, ratio.count) == pytest.approx((2.0, 2.0, 2.0, 2))


def test_rounds_are_read_from_the_log_of_a_job():
    def measured(number: int, kind: RoundKind, size: int, preemptions: int) -> measurements.RoundMeasured:
        return measurements.RoundMeasured(
            number, kind, size, 4, preemptions, 0, 100, 8, 2, 0.5, {8: measurements.StepTimes(1, 0.01)}
        )

    log = [
        (1.0, events.RoundOpened(1, RoundKind.SHORT, 0, racing=True)),
        (3.0, events.RoundClosed(1)),
        (3.1, measured(1, RoundKind.SHORT, 1, 7)),
        (4.0, measurements.Reshaped(2, "why", {"start": 0.5, "end": 0.25})),
        (4.5, events.RoundOpened(2, RoundKind.LONG, 1, racing=False)),
        (6.0, events.RoundClosed(2)),
        (6.1, measured(2, RoundKind.LONG, 2, 0)),
        (6.5, events.Published(2)),
    ]
    found = rounds_of([Event(number, 1, time, body) for number, (time, body) in enumerate(log, 1)])
    assert found["long"] == [False, True]
    assert found["tp"] == [1, 2]
    assert found["rollout"] == pytest.approx([2.0, 1.5])
    assert found["seconds"] == pytest.approx([3.5, 2.0])
    assert found["preemptions"] == [7, 0]
    assert found["reshapes"] == [[1, 2, "why", 0.75]]


def test_the_simulator_runs_every_arm():
    lengths = trace.Trace(0, ((6, 1),))
    for name, arm in ARMS.items():
        steps = predicted(arm, lengths)
        assert len(steps) == lengths.rounds, name
        if name in FIXED:
            assert {step.tensor_parallel for step in steps} == {FIXED[name]}
    assert CHANGE_SECONDS > 0


def test_a_variant_of_the_rule_is_another_rule_while_it_is_played(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(traces, "TRACES", {"few rounds": ((40, 3),)})
    run = traces.Run("few rounds", 0, 4, traces.NONE)
    adapted = traces.play(run)
    assert adapted["changes"] > 0
    assert traces.play(replace(run, variant="no trials"))["changes"] == 0
    assert traces.play(run) == adapted


def test_speeds_below_their_bars_are_marked(tmp_path: Path):
    """From a start size of two devices all are too slow."""
    raw = tmp_path / "traces.jsonl"
    lines: list[dict[str, Any]] = [{"kind": "run", "settings": {"seeds": 1, "ablation_seeds": 1}}]
    for of, start, profile, variant in product(traces.TRACES, SIZES, (None, *traces.CHOICES), traces.VARIANTS):
        seconds = 10.0 if profile is None or start != 2 else 12.0
        run = {"trace": of, "seed": 0, "start": start, "profile": profile, "variant": variant}
        lines.append({"kind": "simulated", **run, "seconds": seconds, "long": 4.0, "changes": 1})
    raw.write_text("".join(json.dumps(line) + "\n" for line in lines))
    traces.write(raw)
    table = raw.with_suffix(".md").read_text()
    assert "1.000 / 0.833* / 1.000 |" in table
    assert "| median 20 | 1.000 / 1.000 / 1.000 |" in table
