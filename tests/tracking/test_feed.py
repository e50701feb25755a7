"""What a tracker is given of a job."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longboat_crds.samples import SamplesSpec
from longboat_runtime.metrics.record import JsonLines, Record
from longboat_runtime.sample_files.files import SCHEMA, Written
from longboat_runtime.tracking import feed as feeds
from longboat_runtime.tracking.feed import COLUMNS, Feed, Superseded
from tests.driver.fakes import make_spec
from tests.tracking.jobs import SPEC, write_records


def steps_of(feed: Feed) -> list[int]:
    return [entry.record.step for entry in feed.entries()]


def test_records_are_given_once_as_they_are_written(tmp_path: Path) -> None:
    write_records(tmp_path, 1, 0, 1)
    feed = Feed(tmp_path, 1, -1, SPEC)
    assert steps_of(feed) == [0, 1]
    assert steps_of(feed) == []
    write_records(tmp_path, 1, 2, 3)
    assert steps_of(feed) == [2, 3]


def test_it_has_caught_up_once_this_start_has_begun_and_all_is_given(tmp_path: Path) -> None:
    write_records(tmp_path, 1, 0, 1)
    feed = Feed(tmp_path, 2, -1, SPEC)
    assert (steps_of(feed), feed.caught_up) == ([], False), "where it resumes isn't known yet"
    write_records(tmp_path, 2, 1)
    for entry in feed.entries():
        assert not feed.caught_up or entry.record.step == 1
    assert feed.caught_up


def test_a_line_that_is_being_written_comes_later(tmp_path: Path) -> None:
    write_records(tmp_path, 1, 0)
    feed, file = Feed(tmp_path, 1, -1, SPEC), tmp_path / "incarnations/1/metrics.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:10].replace(b"0", b"1"))
    assert steps_of(feed) == [0]
    file.write_bytes(whole)
    write_records(tmp_path, 1, 1)
    assert steps_of(feed) == [1]


def test_what_earlier_starts_had_no_time_to_log_comes_first(tmp_path: Path) -> None:
    write_records(tmp_path, 1, 0, 1, 2)
    write_records(tmp_path, 2, 2, 3)
    assert steps_of(Feed(tmp_path, 2, 0, SPEC)) == [1, 2, 3]


def test_a_step_that_is_repeated_after_a_resume_is_not_given_again(tmp_path: Path) -> None:
    write_records(tmp_path, 1, 0, 1, 2, 3)
    write_records(tmp_path, 2, 1, 2, 3, 4)
    given = list(Feed(tmp_path, 2, 3, SPEC).entries())
    assert [entry.record.metrics["critic/score/mean"] for entry in given] == [204.0]


def test_a_start_that_is_superseded_logs_nothing_more(tmp_path: Path) -> None:
    write_records(tmp_path, 1, 0)
    write_records(tmp_path, 3, 0)
    with pytest.raises(Superseded):
        steps_of(Feed(tmp_path, 1, -1, SPEC))


def write_samples(root: Path, step: int, *responses: str) -> None:
    rows = [{"step": step, "response": text, "score": 1.0, "parts": [("main", 0.5)]} for text in responses]
    file = Written(1, step).path(root)
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), file)


def test_a_step_comes_with_its_samples_which_it_waits_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(feeds, "time", SimpleNamespace(time=lambda: now[0]))
    spec = make_spec().model_copy(update={"samples": SamplesSpec(every_steps=2)}).to_json()
    sink = JsonLines(tmp_path / "incarnations/1/metrics.jsonl")
    for step in range(4):
        sink.write(Record(step, 0.0, {"a": 1.0}))
    write_samples(tmp_path, 1, "7", "8" * 20_000)
    feed = Feed(tmp_path, 1, -1, spec)
    first, second = feed.entries()
    assert (first.record.step, second.record.step) == (0, 1), "step 2 waits for its file"
    assert first.samples is None
    assert second.samples is not None
    sample = dict(zip(COLUMNS, second.samples.rows[0], strict=True))
    assert (sample["step"], sample["response"], json.loads(sample["parts"])) == (1, "7", {"main": 0.5})
    assert len(second.samples.rows[1][COLUMNS.index("response")]) == feeds.MOST_CHARACTERS
    write_samples(tmp_path, 2, "9")
    third, fourth = feed.entries()
    assert third.samples is not None
    assert (fourth.record.step, fourth.samples) == (3, None), "no file is due"
    sink.write(Record(4, 0.0, {"a": 1.0}))
    now[0] = feeds.SAMPLES_SECONDS
    assert list(feed.entries()) == []
    now[0] += 1
    assert [entry.record.step for entry in feed.entries()] == [4], "the volume may be full"


def test_the_end_waits_for_no_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "time", SimpleNamespace(time=lambda: 0.0))
    spec = make_spec().model_copy(update={"samples": SamplesSpec(every_steps=1)}).to_json()
    sink = JsonLines(tmp_path / "incarnations/1/metrics.jsonl")
    sink.write(Record(1, 0.0, {"a": 1.0}))
    feed = Feed(tmp_path, 1, -1, spec)
    assert list(feed.entries()) == []
    assert [entry.record.step for entry in feed.entries(ended=True)] == [1]
