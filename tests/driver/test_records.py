from __future__ import annotations

import math
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from longboat_runtime.metrics.batch import batch_metrics, percentile, response_lengths, staleness
from longboat_runtime.metrics.prometheus import Prometheus
from longboat_runtime.metrics.record import JsonLines, Record, read_records
from longboat_runtime.metrics.tensorboard import TensorBoard
from longboat_runtime.rounds.records import SampleRecord
from longboat_runtime.samples import FinishReason, SegmentSize, VersionSpan


def sample(tokens: int, score: float = 0.0, versions: tuple[int, ...] = (0,)) -> SampleRecord:
    spans = tuple(VersionSpan(version, at, at + 1) for at, version in enumerate(versions))
    reason = FinishReason.LENGTH if tokens == 100 else FinishReason.STOP
    return SampleRecord(
        0, prompt_tokens=5, tokens=tokens, finish_reason=reason, spans=spans, score=score, parts={"main": score}
    )


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 1))
def test_a_percentile_is_exceeded_by_at_most_the_rest(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9


def test_lengths_show_the_tail() -> None:
    metrics = response_lengths([sample(tokens) for tokens in (10, 10, 10, 100)])
    assert metrics["response_length/mean"] == 32.5
    assert metrics["response_length/p50"] == 10
    assert metrics["response_length/tail_ratio"] == 10
    assert metrics["response_length/clip_ratio"] == 0.25


def test_loops_that_an_engine_ended_are_counted() -> None:
    looped = replace(sample(4), finish_reason=FinishReason.REPETITION)
    metrics = batch_metrics([looped, sample(4), sample(100), sample(4)], [0.0] * 4, [0.0] * 4)
    assert metrics["response_length/repetition_ratio"] == 0.25
    assert metrics["response_length/clip_ratio"] == 0.25


def test_rewards_and_their_parts() -> None:
    late = replace(sample(4), parts={"main": None})
    metrics = batch_metrics([sample(4, 1.0), late], [1.0, -3.0], [0.5, -0.5])
    assert metrics["critic/score/mean"] == metrics["critic/rewards/mean"] == -1.0
    assert metrics["reward/parts/main/mean"] == 1.0, "what timed out has no score of its own"
    assert metrics["critic/advantages/min"] == -0.5
    assert metrics["perf/total_num_tokens"] == 18


def test_the_segments_of_a_sample_change_only_how_many_tokens_are_computed() -> None:
    whole = [sample(10, 1.0), sample(100, 0.0)]
    parts = [replace(whole[0], segments=(SegmentSize(9, 4), SegmentSize(15, 6))), whole[1]]
    metrics, of_parts = (batch_metrics(samples, [1.0, 0.0], [0.5, -0.5]) for samples in (whole, parts))
    assert {name for name, value in of_parts.items() if value != metrics[name]} == {"perf/total_num_tokens"}
    assert (metrics["perf/total_num_tokens"], of_parts["perf/total_num_tokens"]) == (120, 129)


def test_the_newest_and_the_oldest_token_may_be_in_any_segment() -> None:
    metrics = staleness([sample(4, versions=(2, 3, 1, 2))], 3)
    assert metrics["training/off_policy/trajectory_staleness/max"] == 0
    assert metrics["training/off_policy/trajectory_staleness_worst/max"] == 2
    assert metrics["fully_async/partial/max_partial_span"] == 2


def test_staleness_counts_steps_and_versions() -> None:
    metrics = staleness([sample(4, versions=(1, 2)), sample(4, versions=(3,))], 3)
    assert metrics["training/off_policy/trajectory_staleness/max"] == 1
    assert metrics["training/off_policy/trajectory_staleness_worst/max"] == 2
    assert metrics["training/off_policy/trajectory_staleness_worst/mean"] == 1
    assert metrics["training/off_policy/trajectory_spans/max"] == 2
    assert metrics["training/off_policy/token_staleness/max"] == 2
    assert metrics["training/off_policy/token_staleness/mean"] == 1
    assert metrics["fully_async/partial/total_partial_num"] == 1
    assert metrics["fully_async/partial/partial_ratio"] == 0.5
    assert metrics["fully_async/partial/max_partial_span"] == 1


def test_an_empty_batch_has_no_means() -> None:
    assert batch_metrics([], [], []) == {"training/samples": 0.0, "perf/total_num_tokens": 0.0}


def write(root: Path, incarnation: int, *records: Record) -> None:
    sink = JsonLines(root / "incarnations" / str(incarnation) / "metrics.jsonl")
    for record in records:
        sink.write(record)
    sink.close()


def test_dead_steps_of_an_earlier_incarnation_are_not_read(tmp_path: Path) -> None:
    write(tmp_path, 1, *(Record(step, 1.0, {"a": 1.0, "b": float(step)}) for step in range(6)))
    write(tmp_path, 2, Record(3, 2.0, {"a": 2.0}), Record(4, 2.0, {"a": 2.0}))
    records = read_records(tmp_path)
    assert [record.step for record in records] == [0, 1, 2, 3, 4]
    assert records[3].metrics == {"a": 2.0, "b": 3.0}
    assert records[4].metrics == {"a": 2.0}


def test_values_that_are_not_finite_are_null_in_json(tmp_path: Path) -> None:
    record = Record(1, 1.0, {"actor/pg_loss": math.nan})
    assert '"actor/pg_loss": null' in record.to_line()
    write(tmp_path, 1, record)
    assert math.isnan(read_records(tmp_path)[0].metrics["actor/pg_loss"])


def test_tensorboard_reads_what_is_written(tmp_path: Path) -> None:
    sink = TensorBoard(tmp_path)
    sink.write(Record(3, 100.0, {"critic/score/mean": 0.5, "actor/pg_loss": math.inf}))
    sink.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    (scalar,) = events.Scalars("critic/score/mean")
    assert (scalar.step, scalar.value, scalar.wall_time) == (3, 0.5, 100.0)
    assert events.Tags()["scalars"] == ["critic/score/mean"]


def test_prometheus_serves_the_last_record() -> None:
    sink = Prometheus(0)
    try:
        sink.write(Record(1, 1.0, {"sync/parity_max": 1.0}))
        sink.write(Record(2, 2.0, {"sync/parity_max": 3e-6}))
        with urllib.request.urlopen(f"http://127.0.0.1:{sink.port}/metrics") as answer:
            text = answer.read().decode()
    finally:
        sink.close()
    assert "longboat_sync_parity_max 3e-06" in text
    assert "longboat_training_global_step 2.0" in text


def test_a_metric_that_is_missing_is_no_error() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)
