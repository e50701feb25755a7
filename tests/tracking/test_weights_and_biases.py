"""Runs in Weights & Biases, read back from the files of its own client."""

from __future__ import annotations

import json
import operator
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from longboat_runtime.metrics.record import Record
from longboat_runtime.tracking import weights_and_biases
from longboat_runtime.tracking.feed import Entry, Feed, SampleTable
from longboat_runtime.tracking.tracker import TrackingProblem
from longboat_runtime.tracking.weights_and_biases import WeightsAndBiases
from tests.support.waiting import DEADLINE_SECONDS, eventually
from tests.tracking.jobs import OFFLINE, SPEC, recorded, rows, tracked_job, tracked_spec, write_records
from tests.tracking.wandb_server import Server

ONLINE = {"project": "sums", "entity": "research", "secret": {"name": "wandb"}}


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_and_biases, "INIT_SECONDS", DEADLINE_SECONDS)


def wait_for_a_new_directory_name(root: Path) -> None:
    """Waits until the next offline run gets a directory of its own: the client names it by the second."""

    def namesakes() -> list[Path]:
        return list(root.glob(f"tracking/wandb/offline-run-{time.strftime('%Y%m%d_%H%M%S')}-*"))

    eventually(namesakes, operator.not_)


def test_an_offline_run_is_one_directory_with_the_steps_as_they_were_made_last(tmp_path: Path, server: Server) -> None:
    spec = tracked_spec(OFFLINE)
    # The second start resumes from step 1, and steps 2 and 3 are repeated. More than one block of the file's format.
    many = {f"some/metric/{number}": number / 7 for number in range(600)}
    for incarnation, steps in enumerate([(0, 1, 2, 3), (1, 2, 3, 4)], 1):
        wait_for_a_new_directory_name(tmp_path)
        write_records(tmp_path, incarnation, *steps, metrics=many)
        tracker = WeightsAndBiases(tracked_job(tmp_path, spec, incarnation))
        for entry in Feed(tmp_path, incarnation, tracker.position, SPEC).entries():
            tracker.log(entry)
        tracker.caught_up()
        tracker.finish(None if incarnation < 2 else "done")
    found = rows(tmp_path)
    assert [row["_step"] for row in found] == [0, 1, 2, 3, 4]
    assert [row["critic/score/mean"] for row in found] == [100, 201, 202, 203, 204]
    assert found[0]["some/metric/599"] == pytest.approx(599 / 7)
    (directory,) = tmp_path.glob("tracking/wandb/offline-run-*")
    settings = {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "a" * 40, "WANDB_ENTITY": "research"}
    command = [sys.executable, "-m", "wandb", "sync", str(directory)]
    subprocess.run(command, env=os.environ | settings, check=True, capture_output=True, cwd=tmp_path)
    assert [row["_step"] for row in server.rows["run0"]] == [0, 1, 2, 3, 4]


def test_it_has_the_spec_the_name_and_a_table_of_samples(tmp_path: Path) -> None:
    tracker = WeightsAndBiases(tracked_job(tmp_path, tracked_spec(OFFLINE)))
    table = SampleTable(("step", "response"), [[1, "3 + 4"], [1, "7"]])
    tracker.log(Entry(Record(1, 5.0, {"critic/score/mean": 0.5, "actor/pg_loss": float("nan")}), table))
    tracker.finish("done")
    (run,) = [message.run for message in recorded(tmp_path) if message.WhichOneof("record_type") == "run"]
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (run.run_id, run.project, run.display_name, list(run.tags)) == ("run0", "sums", "sums", ["tiny"])
    assert config["rounds"]["promptsPerRound"] == 2
    (row,) = rows(tmp_path)
    assert row["samples/nrows"] == 2
    assert "actor/pg_loss" not in row
    # The next start writes the run anew, and the job may have removed the file that the table was made from. A process that was killed
    # leaves a table that ends too early.
    wait_for_a_new_directory_name(tmp_path)
    (file,) = tmp_path.glob("tracking/wandb/offline-run-*/files/media/table/samples_*.json")
    (file.parent / "samples_9_0.table.json").write_text('{"columns": ["st')
    tracker = WeightsAndBiases(tracked_job(tmp_path, tracked_spec(OFFLINE), 2))
    tracker.log(Entry(Record(1, 5.0, {"critic/score/mean": 0.5})))
    tracker.caught_up()
    tracker.finish("done")
    (file,) = tmp_path.glob("tracking/wandb/offline-run-*/files/media/table/samples_*.json")
    assert json.loads(file.read_text())["data"] == table.rows


def test_a_missing_secret_is_said_with_its_cure(tmp_path: Path) -> None:
    online = {"weightsAndBiases": {"project": "sums", "secret": {"name": "wandb"}}}
    with pytest.raises(TrackingProblem, match="kubectl create secret generic wandb") as found:
        WeightsAndBiases(tracked_job(tmp_path, tracked_spec(online), secrets=tmp_path))
    assert found.value.field == "weightsAndBiases.secret"


def test_an_online_run_goes_on_after_what_the_server_has(tmp_path: Path, server: Server) -> None:
    spec = tracked_spec({"weightsAndBiases": {**ONLINE, "baseUrl": server.url}})
    (tmp_path / "WANDB_API_KEY").write_text("a" * 40)
    for incarnation, steps in enumerate([(0, 1, 2), (2, 3), (1, 2, 3, 4)], 1):
        write_records(tmp_path, incarnation, *steps)
        tracker = WeightsAndBiases(tracked_job(tmp_path, spec, incarnation, secrets=tmp_path))
        for entry in Feed(tmp_path, incarnation, tracker.position, SPEC).entries():
            tracker.log(entry)
        print("position", tracker.position, server.rows)
        tracker.finish(None if incarnation < 3 else "done")
    assert tracker.place == f"{server.url}/research/sums/runs/run0"
    found = server.rows["run0"]
    assert [(row["_step"], row["critic/score/mean"]) for row in found] == [
        (0, 100),
        (1, 101),
        (2, 102),
        (3, 203),
        (4, 304),
    ]
    assert server.configs["run0"]["rounds"]["value"]["promptsPerRound"] == 2
