from __future__ import annotations

import json
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from longboat_crds.checkpoint import CheckpointSpec
from longboat_operator.model import LABEL_JOB, LABEL_ROLE
from longboat_operator.pods import driver as operator
from longboat_runtime.cli import app
from longboat_runtime.sample_files import command, driver_pod
from longboat_runtime.sample_files.contents import Fate
from longboat_runtime.sample_files.reading import Query, Selection, select
from longboat_runtime.samples import GradeKind, SampleId
from tests.sample_files.made import began, facts, write_step


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two steps. Row 3 is deferred in the first of them and trained in the second."""
    root = tmp_path / "run"
    began(root, 1, 0)
    write_step(
        root,
        1,
        1,
        (facts(SampleId(0, 1, 0, 0), score=0.1), "the first"),
        (facts(SampleId(0, 3, 0, 0), fate=Fate.DEFERRED, reason="too_long", advantage=None, score=0.9), "too early"),
    )
    write_step(
        root,
        1,
        10,
        (facts(SampleId(0, 3, 1, 0), score=0.75, tokens=50, domain="code"), "fifty"),
        (facts(SampleId(0, 3, 1, 1), score=0.25, tokens=5), "five \x1b[2J\u202eevil"),
        (
            facts(
                SampleId(0, 4, 0, 0),
                fate=Fate.DROPPED,
                reason="grader_error",
                grade=GradeKind.GRADER_ERROR,
                score=None,
                parts={},
                advantage=None,
                message="it crashed",
            ),
            "ß" * 4000,
        ),
    )
    return root


def run(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["samples", *map(str, words)])
    return result.exit_code, result.output


def found(*words: str | Path) -> list[str]:
    """Ids of what is shown."""
    status, output = run(*words, "--json")
    assert status == 0, output
    rows: list[dict[str, Any]] = [json.loads(line) for line in output.splitlines()]
    return ["{step}: e{epoch}r{row}a{attempt}s{sample}".format_map(row) for row in rows]


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ([], ["10: e0r3a1s0", "10: e0r3a1s1", "10: e0r4a0s0"]),
        (["--worst", "1"], ["10: e0r3a1s1"]),
        (["--best", "5"], ["10: e0r3a1s0", "10: e0r3a1s1"]),
        (["--longest", "2"], ["10: e0r3a1s0", "10: e0r3a1s1"]),
        (["--worst", "2", "--step", "all"], ["1: e0r1a0s0", "10: e0r3a1s1"]),
        (["--step", "1"], ["1: e0r1a0s0", "1: e0r3a0s0"]),
        (["--prompt", "0:3"], ["1: e0r3a0s0", "10: e0r3a1s0", "10: e0r3a1s1"]),
        (["--prompt", "3", "--fate", "kept"], ["10: e0r3a1s0", "10: e0r3a1s1"]),
        (["--prompt", "1:3"], []),
        (["--search", "FI"], ["1: e0r1a0s0", "10: e0r3a1s0", "10: e0r3a1s1"]),
        (["--search", "prompt 4"], ["10: e0r4a0s0"]),
        (["--domain", "code"], ["10: e0r3a1s0"]),
        (["--fate", "dropped"], ["10: e0r4a0s0"]),
        (["--limit", "1"], ["10: e0r3a1s0"]),
    ],
)
def test_what_is_asked_for_is_found(root: Path, words: list[str], ids: list[str]) -> None:
    assert found(root, *words) == ids


def test_a_line_of_json_has_every_column(root: Path) -> None:
    _, output = run(root, "--best", "1", "--json")
    sample = json.loads(output)
    assert (sample["prompt"], sample["response"], sample["score"], sample["parts"]) == (
        "prompt 3",
        "fifty",
        0.75,
        {"main": 0.5},
    )
    assert sample["versions"] == [{"version": 4, "start": 0, "end": 3}]


def test_the_terminal_shows_what_became_of_each_and_obeys_no_response(root: Path) -> None:
    status, output = run(root, "--terminal", "200")
    assert status == 0
    assert "e0r3a1s0  step 10  kept  score 0.750  advantage -0.250  50 tokens, stop" in output
    assert "code · main 0.500 · weights of step 4 · engine-0" in output
    assert "dropped (grader_error)  no score" in output
    assert "it crashed" in output
    assert "five \\x1b[2J\\u202eevil" in output
    assert "2200 characters; --full shows them" in output
    assert "3 of 3 samples (2 kept, 1 dropped)" in output
    assert output.count("prompt 3") == 1, "a prompt is shown once"
    _, whole = run(root, "--full")
    assert whole.replace("\n", "").count("ß") == 4000
    _, few = run(root, "--limit", "1")
    assert "1 of 3 samples (2 kept, 1 dropped); --limit shows more" in few


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--worst", "1", "--best", "1"], "--worst and --best: give one of them"),
        (["--longest", "1", "--limit", "1"], "--longest and --limit: give one of them"),
        (["--prompt", "e0r3"], "--prompt e0r3: write EPOCH:ROW, such as 0:17, or ROW for all epochs"),
        (["--fate", "lost"], "--fate lost: write kept, dropped, deferred"),
        (["--step", "7"], "--step 7: no file of that step; write all, or one of 1, 10"),
    ],
)
def test_a_wrong_option_is_told_with_the_cure(root: Path, words: list[str], told: str) -> None:
    status, output = run(root, *words)
    assert (status, output.strip()) == (1, told)


def test_a_directory_without_responses_is_told_with_the_cure(tmp_path: Path) -> None:
    status, output = run(tmp_path)
    assert status == 1
    assert "A job writes some if it has spec.samples" in output


def test_a_damaged_file_is_named(root: Path) -> None:
    path = write_step(root, 1, 20)
    path.write_bytes(b"not parquet")
    status, output = run(root)
    assert status == 1
    assert str(path) in output


def removes_files(root: Path, monkeypatch: pytest.MonkeyPatch, *, times: int) -> None:
    """Acts as a job that keeps two files: so many times it writes the next one after files are listed and before they are read."""
    steps = iter(range(20, 20 + times))

    def late(paths: Iterable[Path], query: Query) -> Selection:
        if step := next(steps, None):
            write_step(root, 1, step, keep=2)
        return select(paths, query)

    monkeypatch.setattr(command, "select", late)


def test_a_running_job_may_remove_files_while_they_are_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removes_files(root, monkeypatch, times=2)
    assert found(root, "--step", "all") == ["20: e0r3a0s0", "21: e0r3a0s0"]


def test_a_step_that_the_job_removes_is_told_with_those_that_are_there(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removes_files(root, monkeypatch, times=1)
    status, output = run(root, "--step", "1")
    assert (status, output.strip()) == (1, "--step 1: no file of that step; write all, or one of 10, 20")


def test_files_that_are_always_removed_before_they_are_read_are_told(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removes_files(root, monkeypatch, times=1000)
    status, output = run(root, "--step", "all")
    assert status == 1
    assert "has just been removed by the job (samples.keep); try again" in output


def test_what_is_no_directory_and_no_name_of_a_job_is_told() -> None:
    status, output = run("runs/nowhere")
    assert status == 1
    assert "DIR runs/nowhere: no such directory" in output


KUBECTL = """#!/bin/sh
echo "$@" >> {calls}
case "$*" in
  *exec*) shift $(($# - {words})); exec "$@" ;;
  *pods*) cat {pods} ;;
  *rljob*) cat {job} ;;
esac
"""


class Cluster:
    """A kubectl that knows one job; what is executed in its pod is executed here."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, self.pods, self.job = (folder / name for name in ("calls", "pods.json", "job.json"))
        self._path = folder / "kubectl"
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        self.job.write_text(json.dumps({"spec": {}, "status": {"phase": "Suspended"}}))

    def answer(self, state: str, command: list[str], words: int) -> None:
        containers = [{"name": "other"}, {"name": "driver", "command": command}]
        statuses = [{"name": "driver", "state": {state: {}}}]
        pod = {"metadata": {"name": "sums-driver-0-a1"}, "spec": {"containers": containers}}
        self.pods.write_text(json.dumps({"items": [{**pod, "status": {"containerStatuses": statuses}}]}))
        self._path.write_text(KUBECTL.format(calls=self.calls, pods=self.pods, job=self.job, words=words))
        self._path.chmod(self._path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.chdir(tmp_path)
    return Cluster(tmp_path, monkeypatch)


def test_a_jobs_samples_are_read_in_its_driver_pod(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    cluster.answer("running", ["echo", "longboat"], words=6)
    assert run("sums", "-n", "team", "--worst", "3", "--json")[0] == 0
    pods, execution = cluster.calls.read_text().splitlines()
    assert pods == "--namespace team get pods --selector longboat.dev/job=sums,longboat.dev/role=driver --output json"
    assert execution.startswith(
        "--namespace team exec sums-driver-0-a1 --container driver -- echo longboat samples /checkpoint"
    )
    assert capfd.readouterr().out == "longboat samples /checkpoint --worst=3 --json\n"


def test_a_job_whose_driver_does_not_run_is_told_with_its_claim(cluster: Cluster) -> None:
    cluster.answer("terminated", ["longboat"], words=0)
    status, output = run("sums")
    assert status == 1
    assert "JOB sums: no driver pod of it runs (phase Suspended). Its files are on the claim sums-checkpoint" in output
    cluster.job.write_text(json.dumps({"spec": {"checkpoint": {"claimName": "ours"}}}))
    assert "on the claim ours" in run("sums")[1]


def test_a_directory_comes_before_a_job_of_that_name(cluster: Cluster, root: Path) -> None:
    cluster.answer("running", ["echo"], words=0)
    assert found("run", "--limit", "1") == ["10: e0r3a1s0"]
    assert not cluster.calls.exists()


def test_without_kubectl_a_job_can_not_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    status, output = run("sums")
    assert status == 1
    assert "kubectl has to be on the PATH" in output


def test_the_pod_is_the_one_that_the_operator_makes() -> None:
    labels = f"{LABEL_JOB}={{job}},{LABEL_ROLE}=driver"
    assert labels == driver_pod._LABELS
    mounts = operator.checkpoint_mounts(CheckpointSpec())
    assert [mount["mountPath"] for mount in mounts] == [driver_pod._CLAIM]
