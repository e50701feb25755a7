from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from longboat_runtime.sample_files import files
from longboat_runtime.sample_files.contents import Fate, SampleFileRequest
from longboat_runtime.sample_files.files import Written, removable, write, written
from longboat_runtime.sample_files.reading import read_file, read_files
from longboat_runtime.samples import FinishReason, GradeKind, SampleId, VersionSpan
from tests.sample_files.made import Store, began, facts, prompts, write_step

FIRST, SECOND = SampleId(0, 3, 0, 0), SampleId(1, 4, 2, 1)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    spans = (VersionSpan(6, 0, 2), VersionSpan(7, 2, 5))
    timeout = facts(
        SECOND,
        fate=Fate.DEFERRED,
        reason="too_long",
        grade=GradeKind.TIMEOUT,
        parts={"main": None, "form": 1.0},
        message="main: after 5 s",
        score=1.0,
        advantage=None,
        tokens=5,
        finish_reason=FinishReason.LENGTH,
        spans=spans,
    )
    path = write_step(tmp_path, 1, 8, (facts(FIRST), "one\n\x1b[31m größe"), (timeout, "broken \ud800"))
    first, second = read_file(path)
    assert first == {
        "step": 8,
        "round": 8,
        "domain": "math",
        "epoch": 0,
        "row": 3,
        "attempt": 0,
        "sample": 0,
        "fate": "kept",
        "reason": None,
        "score": 0.5,
        "parts": {"main": 0.5},
        "grade": "scored",
        "grading_seconds": 0.1,
        "advantage": -0.25,
        "prompt_tokens": 2,
        "response_tokens": 3,
        "finish_reason": "stop",
        "versions": [{"version": 4, "start": 0, "end": 3}],
        "engine": "engine-0",
        "special": [],
        "segments": [],
        "environment_seconds": None,
        "environment_error": None,
        "turns": [],
        "message": "",
        "prompt": "prompt 3",
        "response": "one\n\x1b[31m größe",
    }
    assert (second["fate"], second["reason"], second["advantage"]) == ("deferred", "too_long", None)
    assert second["parts"] == {"main": None, "form": 1.0}
    assert second["message"] == "main: after 5 s"
    assert second["versions"] == [span._asdict() for span in spans]
    assert second["response"] == "broken ?"
    assert [path.name for path in path.parent.iterdir()] == ["step-00000008.parquet"]


def test_a_step_is_fetched_in_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PORTION_BYTES", 10_000)
    ids = [SampleId(0, 0, 0, index) for index in range(20)]
    store = Store(dict.fromkeys(ids, "text"))
    request = SampleFileRequest(1, 1, 1, tuple(facts(id_, tokens=200) for id_ in ids), 1, 0)
    write(tmp_path, request, store.responses, prompts)
    assert [len(fetched) for fetched in store.fetches] == [6] * 3 + [2]
    path = Written(1, 1).path(tmp_path)
    assert pq.ParquetFile(path).num_row_groups == 4
    assert [sample["sample"] for sample in read_file(path)] == list(range(20))


def test_what_the_store_has_lost_is_left_out(tmp_path: Path) -> None:
    request = SampleFileRequest(1, 1, 1, (facts(FIRST), facts(SECOND)), 1, 0)
    write(tmp_path, request, Store({SECOND: "here"}).responses, prompts)
    assert [sample["response"] for sample in read_file(Written(1, 1).path(tmp_path))] == ["here"]


def test_a_step_without_a_sample_has_an_empty_file(tmp_path: Path) -> None:
    write(tmp_path, SampleFileRequest(1, 1, 1, (), 1, 0), Store({}).responses, prompts)
    assert list(read_file(Written(1, 1).path(tmp_path))) == []


def test_the_newest_files_stay(tmp_path: Path) -> None:
    for step in (1, 10, 20, 30):
        write_step(tmp_path, 1, step, keep=3)
    assert written(tmp_path) == [Written(1, 10), Written(1, 20), Written(1, 30)]
    write_step(tmp_path, 1, 40, keep=1)
    assert written(tmp_path) == [Written(1, 40)]


def test_files_count_up_to_the_step_where_a_later_incarnation_began(tmp_path: Path) -> None:
    """Before that one has written any, and after it has: then the others are removed."""
    began(tmp_path, 1, 0)
    for step in (10, 20, 30):
        write_step(tmp_path, 1, step)
    assert list(read_files(tmp_path)) == [10, 20, 30]
    began(tmp_path, 2, 15)
    assert list(read_files(tmp_path)) == [10]
    path = write_step(tmp_path, 2, 20, began=15)
    assert read_files(tmp_path) == {10: Written(1, 10).path(tmp_path), 20: path}
    assert written(tmp_path) == [Written(1, 10), Written(2, 20)]


def test_a_superseded_incarnation_removes_nothing() -> None:
    every = [Written(1, 10), Written(1, 20), Written(2, 20)]
    assert removable(every, Written(1, 20), 0, 1) == []
    assert removable(every, Written(2, 20), 10, 1) == [Written(1, 20), Written(1, 10)]


def test_a_write_that_fails_leaves_nothing_and_touches_no_other_file(tmp_path: Path) -> None:
    write_step(tmp_path, 1, 1)

    def fails(samples: Sequence[SampleId]) -> list[str]:
        raise OSError(28, "No space left on device")

    request = SampleFileRequest(1, 2, 2, (facts(FIRST),), 10, 0)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path, request, Store({FIRST: "text"}).responses, fails)
    assert [path.name for path in Written(1, 1).path(tmp_path).parent.iterdir()] == ["step-00000001.parquet"]


def test_old_files_go_even_if_there_can_be_no_directory_for_a_new_one(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write_step(tmp_path, 1, step)
    (tmp_path / "incarnations" / "2").symlink_to("nowhere")
    with pytest.raises(OSError, match="File exists"):
        write_step(tmp_path, 2, 4, keep=1, began=3)
    assert written(tmp_path) == [Written(1, 3)]


def test_what_a_dead_incarnation_left_half_written_is_removed(tmp_path: Path) -> None:
    left = write_step(tmp_path, 1, 1).with_name(".step-00000002.parquet.partial")
    left.write_bytes(b"half")
    assert list(read_files(tmp_path)) == [1]
    write_step(tmp_path, 2, 2, began=1)
    assert not left.exists()


FULL = """
import errno, random, sys
from pathlib import Path
from longboat_runtime.samples import SampleId
from tests.sample_files.made import facts, write_step
texts = random.Random(0)
try:
    for step in range(1, 9):
        write_step(Path(sys.argv[1]), 1, step, (facts(), texts.randbytes(190_000).hex()), keep=int(sys.argv[2]))
except OSError as error:
    print(errno.errorcode[error.errno])
else:
    print("written")
print(*sorted(path.name for path in Path(sys.argv[1]).rglob("*step-*")))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
@pytest.mark.parametrize(("keep", "result"), [(8, "ENOSPC"), (2, "written")])
def test_a_full_volume_is_told_as_such_and_keep_bounds_what_is_taken(tmp_path: Path, keep: int, result: str) -> None:
    """A volume of 1 MiB in a mount namespace that goes with the process; a file has about 200 kB."""
    script = 'mount -t tmpfs -o size=1m tmpfs "$0" && exec "$@"'
    command = [sys.executable, "-c", FULL, str(tmp_path), str(keep)]
    shell = ["unshare", "--mount", "sh", "-ec", script, str(tmp_path)]
    done = subprocess.run([*shell, *command], capture_output=True, text=True, check=True)
    told, names = done.stdout.splitlines()
    assert told == result
    assert len(names.split()) == (2 if keep == 2 else 5)
    assert ".partial" not in names
