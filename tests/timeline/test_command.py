from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from longboat_runtime.cli import app
from longboat_runtime.eventlog import log_path, read_log
from longboat_runtime.rounds import events, measurements
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.timeline.command import show
from longboat_runtime.timeline.fold import fold
from tests.timeline.history import EPOCH, accepted, long_round, numbered, short_round, start, write

PNG = b"\x89PNG"


@pytest.fixture
async def root(tmp_path: Path) -> Path:
    """Two incarnations; the first one went on for a round after what the second one resumed."""
    first = numbered([*start(), *short_round()])
    ledger = accepted(first)
    position = await write(tmp_path, 1, first)
    dead = numbered([(7, events.RoundOpened(2, RoundKind.SHORT, 1))], first=len(first) + 1)
    with log_path(tmp_path, 1).open("a") as file:
        file.writelines(json.dumps(event.to_json()) + "\n" for event in dead)
    second = numbered([*start(5000, step=1), *long_round(5001)], 2, len(first) + 1)
    accepted([*first, *second])
    await write(tmp_path, 2, second, position, ledger)
    return tmp_path


def test_only_what_survived_is_read(root: Path) -> None:
    timeline = fold(read_log(root))
    assert [(round_.number, round_.kind, round_.opened - EPOCH) for round_ in timeline.rounds] == [
        (1, RoundKind.SHORT, 1),
        (2, RoundKind.LONG, 5001),
    ]
    assert [(gap.start - EPOCH, gap.end - EPOCH) for gap in timeline.gaps] == [(6.5, 5000)]


@pytest.mark.parametrize("begun", [b"", b'{"log":1,"resu'])
def test_a_log_that_has_nothing_yet_hides_no_other(root: Path, begun: bytes) -> None:
    log_path(root, 3).parent.mkdir()
    log_path(root, 3).write_bytes(begun)
    log_path(root, 4).parent.mkdir()
    assert len(fold(read_log(root)).rounds) == 2


def test_a_picture_is_written_into_the_directory(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(root, None, None, None) == 0
    assert (root / "timeline.png").read_bytes().startswith(PNG)
    assert str(root / "timeline.png") in capsys.readouterr().out


def test_it_is_a_command(root: Path) -> None:
    assert "Usage" in CliRunner().invoke(app, ["timeline", "--help"]).output
    result = CliRunner().invoke(app, ["timeline", str(root), "--rounds", "2", "--trace", str(root / "trace.json")])
    assert result.exit_code == 0, result.output
    assert CliRunner().invoke(app, ["timeline", str(root), "--rounds", "3"]).exit_code == 1


def test_files_may_be_named(root: Path, tmp_path: Path) -> None:
    picture, trace = tmp_path / "one.png", tmp_path / "one.json"
    assert show(root, "1", None, trace) == 0
    assert json.loads(trace.read_text())["traceEvents"]
    assert not (root / "timeline.png").exists(), "only what was asked for"
    assert show(root, "1-2", picture, trace) == 0
    assert picture.read_bytes().startswith(PNG)


@pytest.mark.parametrize("count", [1, 8])
async def test_pools_are_drawn_below_the_engines(tmp_path: Path, count: int) -> None:
    """Each in a lane of its own, so that the picture becomes higher by that and no wider."""
    names = [f"pool-{i}" for i in range(count)]
    graded = measurements.PoolGrading(7, 7, 1.0, 3, 0.5, ((0.0, 0), (1.5, 7), (4.0, 0)))
    moments = [
        *start(),
        *short_round(),
        (6, measurements.CpusGranted(dict.fromkeys(names, 1.5))),
        (6, measurements.RoundGraded(1, dict.fromkeys(names, graded))),
    ]
    await write(tmp_path, 1, numbered(moments))
    assert show(tmp_path, None, None, None) == 0
    (tmp_path / "plain").mkdir()
    await write(tmp_path / "plain", 1, numbered([*start(), *short_round()]))
    assert show(tmp_path / "plain", None, None, None) == 0
    shown, plain = (
        int.from_bytes((path / "timeline.png").read_bytes()[20:24], "big") for path in (tmp_path, tmp_path / "plain")
    )
    assert shown - plain > 20 * count


async def test_a_round_without_a_sample_is_drawn(tmp_path: Path) -> None:
    await write(tmp_path, 1, numbered([*start(), (1, events.RoundOpened(1, RoundKind.SHORT, 0))]))
    assert show(tmp_path, None, None, tmp_path / "trace.json") == 0
    assert show(tmp_path, None, None, None) == 0


def test_a_directory_without_a_log_is_named_with_the_cure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for output in (tmp_path, tmp_path / "nowhere"):
        assert show(output, None, None, None) == 1
        told = capsys.readouterr().err
        assert told.startswith(f"OUTPUT {output}: no events in {output}/incarnations/*/events.log; give the directory")


async def test_a_job_without_a_round_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await write(tmp_path, 1, numbered(start()))
    assert show(tmp_path, None, None, None) == 1
    assert "no round was opened yet" in capsys.readouterr().err


def test_rounds_that_are_not_there_are_told(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(root, "2-3", None, None) == 1
    assert capsys.readouterr().err == "--rounds 2-3: the log has rounds 1 to 2; give a range of these\n"


def test_an_incarnation_that_is_gone_is_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log_path(root, 1).unlink()
    assert show(root, None, None, None) == 1
    assert str(log_path(root, 1)) in capsys.readouterr().err


def test_a_damaged_log_is_told(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = log_path(root, 2)
    path.write_text(path.read_text().replace('"Generated"', '"Generate"', 1))
    assert show(root, None, None, None) == 1
    assert "is damaged: not an event" in capsys.readouterr().err


@pytest.mark.parametrize("line", range(2))
def test_a_line_of_a_log_that_is_no_object_is_told(root: Path, capsys: pytest.CaptureFixture[str], line: int) -> None:
    path = log_path(root, 2)
    lines = path.read_text().splitlines(keepends=True)
    lines[line] = "[1]\n"
    path.write_text("".join(lines))
    assert show(root, None, None, None) == 1
    assert "is damaged: " in capsys.readouterr().err


def test_a_file_that_can_not_be_written_is_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ({"png": root / "no" / "a.png", "trace_file": None}, {"png": None, "trace_file": root / "no" / "a"}):
        assert show(root, None, **option) == 1
        assert (
            "No such file or directory; name files that can be written by --png and --trace" in capsys.readouterr().err
        )
