"""What a tracker is given of a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from longboat_runtime.tracking.feed import Feed, Superseded
from tests.tracking.jobs import write_records


def steps_of(feed: Feed) -> list[int]:
    return [entry.record.step for entry in feed.entries()]


def test_records_are_given_once_as_they_are_written(tmp_path: Path) -> None:
    write_records(tmp_path, 1, 0, 1)
    feed = Feed(tmp_path, 1, -1)
    assert steps_of(feed) == [0, 1]
    assert steps_of(feed) == []
    write_records(tmp_path, 1, 2, 3)
    assert steps_of(feed) == [2, 3]


def test_a_line_that_is_being_written_comes_later(tmp_path: Path) -> None:
    write_records(tmp_path, 1, 0)
    feed, file = Feed(tmp_path, 1, -1), tmp_path / "incarnations/1/metrics.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:10].replace(b"0", b"1"))
    assert steps_of(feed) == [0]
    file.write_bytes(whole)
    write_records(tmp_path, 1, 1)
    assert steps_of(feed) == [1]


def test_what_earlier_starts_had_no_time_to_log_comes_first(tmp_path: Path) -> None:
    write_records(tmp_path, 1, 0, 1, 2)
    write_records(tmp_path, 2, 2, 3)
    assert steps_of(Feed(tmp_path, 2, 0)) == [1, 2, 3]


def test_a_step_that_is_repeated_after_a_resume_is_not_given_again(tmp_path: Path) -> None:
    write_records(tmp_path, 1, 0, 1, 2, 3)
    write_records(tmp_path, 2, 1, 2, 3, 4)
    given = list(Feed(tmp_path, 2, 3).entries())
    assert [entry.record.metrics["critic/score/mean"] for entry in given] == [204.0]


def test_a_start_that_is_superseded_logs_nothing_more(tmp_path: Path) -> None:
    write_records(tmp_path, 1, 0)
    write_records(tmp_path, 3, 0)
    with pytest.raises(Superseded):
        steps_of(Feed(tmp_path, 1, -1))
