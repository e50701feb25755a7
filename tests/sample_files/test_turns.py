"""Episodes in files of samples, and in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from longboat_runtime.sample_files.command import folded, headings
from longboat_runtime.sample_files.contents import SampleFileRequest
from longboat_runtime.sample_files.files import SCHEMA, Written, write
from longboat_runtime.sample_files.reading import Query, read_file, select
from longboat_runtime.samples import (
    Episode,
    EpisodeEnd,
    EpisodeTurn,
    FinishReason,
    Response,
    SampleId,
    SegmentSize,
)
from tests.sample_files.made import FIRST, facts, prompts, write_step

CALL = [{"id": "c1", "type": "function", "function": {"name": "move", "arguments": '{"to": "left"}'}}]
TURNS = (
    EpisodeTurn(
        new=[{"role": "system", "content": "Walk."}, {"role": "user", "content": [{"type": "text", "text": "Where?"}]}],
        message={"role": "assistant", "content": None, "tool_calls": CALL},
        text="<tool>left</tool>",
        tokens=7,
        finish_reason=FinishReason.STOP,
        seconds=0.4,
        segment=0,
        beginning="first",
    ),
    EpisodeTurn(
        new=[{"role": "tool", "content": "a wall \x1b[31m"}],
        message={"role": "assistant", "content": "I give up", "reasoning": "hm"},
        text="hm</think>I give up",
        tokens=5,
        finish_reason=FinishReason.STOP,
        seconds=0.2,
        segment=1,
        beginning="rewritten",
        differs=1,
    ),
)


def episode(**fields: Any) -> Episode:
    return Episode(
        **{"environment": "maze", "end": EpisodeEnd.FINISHED, "reward": 0.0, "environment_seconds": 1.5, "turns": TURNS}
        | fields
    )


def written(root: Path, played: Episode, **fields: Any) -> Path:
    own = facts(FIRST, segments=(SegmentSize(20, 7), SegmentSize(9, 5)), environment_seconds=1.5, **fields)
    request = SampleFileRequest(1, 1, 1, (own,), 1, 0)

    def responses(ids: Any) -> dict[SampleId, Response]:
        return {FIRST: Response("I give up", FinishReason.STOP, 12, episode=played)}

    write(root, request, responses, prompts)
    return Written(1, 1).path(root)


def test_a_file_has_the_messages_of_an_episode_and_what_is_trained_where(tmp_path: Path) -> None:
    (sample,) = read_file(written(tmp_path, episode()))
    assert sample["response"] == "I give up"
    assert (sample["environment_seconds"], sample["environment_error"]) == (1.5, None)
    assert sample["segments"] == [{"tokens": 20, "trained": 7}, {"tokens": 9, "trained": 5}]
    turns = sample["turns"]
    assert [turn["role"] for turn in turns] == ["system", "user", "assistant", "tool", "assistant"]
    assert [turn["tokens"] for turn in turns] == [None, None, 7, None, 5]
    assert [turn["trained"] for turn in turns] == [False, False, True, False, True]
    assert [turn["segment"] for turn in turns if turn["trained"]] == [0, 1]
    assert [turn["differs"] for turn in turns if turn["trained"]] == [None, 1]
    assert "move" in turns[2]["tool_calls"]
    assert turns[4]["text"] == "hm\nI give up"
    assert "Where?" in turns[1]["text"]


def test_a_file_says_what_went_wrong_in_an_environment(tmp_path: Path) -> None:
    (sample,) = read_file(written(tmp_path, episode(end=EpisodeEnd.TIMEOUT, message="more than its deadline")))
    assert sample["environment_error"] == "more than its deadline"
    (sample,) = read_file(written(tmp_path, episode(), environment_error="ValueError: no door"))
    assert sample["environment_error"] == "ValueError: no door"


def test_messages_of_turns_and_errors_are_searched(tmp_path: Path) -> None:
    path = written(tmp_path, episode(), environment_error="ValueError: no key")
    for text, matched in (("A WALL", 1), ("move", 1), ("No Key", 1), ("a door", 0)):
        assert len(select([path], Query(search=text)).samples) == matched
    assert select([path], Query()).samples[0]["turns"][3]["role"] == "tool"


def test_files_of_earlier_releases_have_no_turns(tmp_path: Path) -> None:
    path = write_step(tmp_path, 1, 1)
    later = {"turns", "segments", "environment_seconds", "environment_error"}
    table = pq.read_table(path, columns=[name for name in SCHEMA.names if name not in later])
    pq.write_table(table, path)
    (sample,) = read_file(path)
    assert (sample["turns"], sample["segments"], sample["environment_seconds"]) == ([], [], None)
    (sample,) = select([path], Query(search="step 1")).samples
    assert (sample["turns"], sample["segments"], sample["environment_error"]) == ([], [], None)


def test_the_terminal_folds_turns_and_escapes_what_it_would_obey(tmp_path: Path) -> None:
    (sample,) = read_file(written(tmp_path, episode()))
    lines = folded(sample["turns"], full=False)
    assert len(lines) == 5
    assert lines[0] == "  system: Walk."
    assert lines[2].startswith("> assistant (segment 0, first, 7 tokens, 0.4 s): [{")
    assert lines[3] == "  tool: a wall \\x1b[31m"
    assert lines[4] == "> assistant (segment 1, rewritten at message 1, 5 tokens, 0.2 s): hm I give up"
    assert "2 turns in 2 segments · 1.5 s in its environment" in headings(sample)[1]


def test_long_messages_are_cut_unless_all_is_wanted() -> None:
    turn = {"role": "user", "text": "x" * 1000, "tool_calls": None, "tokens": None}
    assert len(folded([turn], full=False)[0]) < 200
    assert folded([turn], full=True) == [f"  user: {'x' * 1000}"]
