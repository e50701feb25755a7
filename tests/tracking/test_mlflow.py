"""Runs in MLflow: its own client against a server in this process."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from longboat_runtime.metrics.record import Record
from longboat_runtime.tracking.feed import Entry, Feed, SampleTable
from longboat_runtime.tracking.mlflow import Mlflow, metric_name, parameters_of
from longboat_runtime.tracking.tracker import TrackingProblem
from tests.support.waiting import DEADLINE_SECONDS
from tests.tracking.jobs import SPEC, tracked_job, tracked_spec, write_records
from tests.tracking.mlflow_server import Server


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """Restores what a tracker's process sets for itself."""
    before = dict(os.environ)
    os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = f"{DEADLINE_SECONDS:.0f}"
    yield
    os.environ.clear()
    os.environ.update(before)


def to(server: Server, **fields: Any) -> dict[str, Any]:
    return {"mlflow": {"trackingUri": server.url, "experiment": "sums", "tags": {"team": "a"}, **fields}}


def test_a_run_has_every_step_once_however_often_the_job_is_resumed(tmp_path: Path, server: Server) -> None:
    spec = tracked_spec(to(server))
    for incarnation, steps in enumerate([(0, 1, 2), (2, 3), (1, 2, 3, 4)], 1):
        write_records(tmp_path, incarnation, *steps)
        tracker = Mlflow(tracked_job(tmp_path, spec, incarnation))
        for entry in Feed(tmp_path, incarnation, tracker.position, SPEC).entries():
            tracker.log(entry)
        tracker.finish(None if incarnation < 3 else "done")
        assert server.only_run["info"]["status"] == ("RUNNING" if incarnation < 3 else "FINISHED")
    assert server.points("critic/score/mean") == [(0, 100), (1, 101), (2, 102), (3, 203), (4, 304)]
    assert server.points("training/global_step") == [(step, step) for step in range(5)]


def test_what_the_server_stored_without_saying_so_is_not_logged_twice(tmp_path: Path, server: Server) -> None:
    spec = tracked_spec(to(server))
    write_records(tmp_path, 1, 0, 1)
    tracker = Mlflow(tracked_job(tmp_path, spec))
    server.fail = 1
    with pytest.raises(TrackingProblem, match="500") as found:
        tracker.log(next(Feed(tmp_path, 1, tracker.position, SPEC).entries()))
    assert found.value.field == "mlflow.trackingUri"
    tracker = Mlflow(tracked_job(tmp_path, spec))
    for entry in Feed(tmp_path, 1, tracker.position, SPEC).entries():
        tracker.log(entry)
    assert server.points("critic/score/mean") == [(0, 100), (1, 101)]


def test_a_record_that_takes_several_requests_counts_once_it_is_whole(tmp_path: Path, server: Server) -> None:
    tracker = Mlflow(tracked_job(tmp_path, tracked_spec(to(server))))
    server.fail = 1
    record = Record(7, 1.0, {f"metric/{number}": float(number) for number in range(1500)})
    with pytest.raises(TrackingProblem):
        tracker.log(Entry(record))
    assert Mlflow(tracked_job(tmp_path, tracked_spec(to(server)))).position == -1


def test_it_has_the_spec_the_name_and_a_table_of_samples(tmp_path: Path, server: Server) -> None:
    from mlflow import MlflowClient

    tracker = Mlflow(tracked_job(tmp_path, tracked_spec(to(server, name="first"))))
    record = Record(1, 5.0, {"actor/pg_loss": float("nan"), "val/score/math (hard)@2/mean": 0.5})
    tracker.log(Entry(record, SampleTable(("step", "response"), [[1, "3 + 4"], [1, "7"]])))
    (run,) = MlflowClient(server.url).search_runs(["1"], "tags.`longboat.run` = 'run0'")
    assert run.info.run_name == "first"
    assert run.data.params["rounds.promptsPerRound"] == "2"
    assert run.data.tags["team"] == "a"
    assert run.data.metrics == {"training/global_step": 1.0, "val/score/math _hard__2/mean": 0.5}
    assert tracker.place == f"{server.url}/#/experiments/1/runs/{run.info.run_id}"
    (table,) = server.artifacts.values()
    assert json.loads(table) == {"columns": ["step", "response"], "data": [[1, "3 + 4"], [1, "7"]]}


def test_without_a_store_for_artifacts_only_tables_are_missing(tmp_path: Path, server: Server) -> None:
    tracker = Mlflow(tracked_job(tmp_path, tracked_spec(to(server))))
    server.only_run["info"]["artifact_uri"] = "nowhere://bucket/run"
    tracker.log(Entry(Record(1, 5.0, {"a": 1.0}), SampleTable(("step",), [[1]])))
    assert server.points("a") == [(1, 1)]
    assert tracker.lacking is not None
    assert "nowhere" in tracker.lacking.message


def test_an_edit_of_the_spec_does_not_stop_the_run(tmp_path: Path, server: Server) -> None:
    Mlflow(tracked_job(tmp_path, tracked_spec(to(server), steps=5)))
    Mlflow(tracked_job(tmp_path, tracked_spec(to(server), steps=9), 2))
    assert {p["value"] for p in server.only_run["params"] if p["key"] == "rounds.steps"} == {"5"}


def test_credentials_come_from_the_files_of_the_secret(tmp_path: Path, server: Server) -> None:
    spec = tracked_spec(to(server, secret={"name": "mlflow"}))
    with pytest.raises(TrackingProblem, match="kubectl create secret generic mlflow") as found:
        Mlflow(tracked_job(tmp_path, spec, secrets=tmp_path))
    assert found.value.field == "mlflow.secret"
    (tmp_path / "MLFLOW_TRACKING_USERNAME").write_text("me\n")
    (tmp_path / "MLFLOW_TRACKING_PASSWORD").write_text("word")
    Mlflow(tracked_job(tmp_path, spec, secrets=tmp_path))
    assert server.authorizations == {"Basic " + base64.b64encode(b"me:word").decode()}


def test_names_and_values_are_made_to_fit() -> None:
    assert metric_name("val/score/a..b//π@8") == "val/score/a__b/_/__8"
    assert dict(parameters_of({"a": {"b": [1, "x"]}, "c": "y" * 900})) == {"a.b": "[1, 'x']", "c": "y" * 500}
