"""Trackers beside a job: what they can do to it, and what becomes of them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from longboat_crds.job import RLJobSpec
from longboat_crds.status import Problem, TrackingStatus, TrainingState
from longboat_runtime.driver.broker import LocalBroker
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.main import Ending, drive
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.metrics.record import read_records
from longboat_runtime.tracking import trackers
from longboat_runtime.tracking.trackers import Trackers, run_id
from tests.driver.fakes import Site
from tests.support.waiting import DEADLINE_SECONDS, eventually_async
from tests.tracking.jobs import OFFLINE, rows, tracked_spec, write_records
from tests.tracking.mlflow_server import Server

# A port that nobody listens on.
AWAY = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def _short_pauses_and_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_PAUSE", "LONGEST_PAUSE"):
        monkeypatch.setattr(trackers, name, 0.01)
    for name in ("ENDED_SECONDS", "PAUSED_SECONDS", "SILENCE_SECONDS"):
        monkeypatch.setattr(trackers, name, DEADLINE_SECONDS)


def mlflow(uri: str, **fields: Any) -> dict[str, Any]:
    return {"mlflow": {"trackingUri": uri, "experiment": "sums", **fields}}


def opened(root: Path, spec: RLJobSpec, incarnation: int = 1, secrets: Path | None = None) -> Trackers:
    return Trackers(spec, root, incarnation, "sums", asyncio.Event(), secrets)


def problem_of(tracked: Trackers) -> Problem | None:
    return next(iter(tracked.status().problems), None)


def places(tracked: Trackers) -> TrackingStatus | None:
    return tracked.status().training["tracking"]


async def tracker_problem(tracked: Trackers) -> Problem:
    """Waits until a tracker has a problem, and returns it."""
    problem = await eventually_async(lambda: problem_of(tracked))
    assert problem is not None
    return problem


async def test_everything_is_logged_by_the_end_and_the_status_says_where(tmp_path: Path) -> None:
    # The first start had no tracker, or none that reached its server.
    write_records(tmp_path, 1, 0, 1, 2)
    write_records(tmp_path, 2, 1, 2, 3)
    tracked = opened(tmp_path, tracked_spec(OFFLINE), 2)
    tracked.start()
    await eventually_async(lambda: places(tracked))
    write_records(tmp_path, 2, 4)
    await tracked.finish("done")
    assert [(row["_step"], row["critic/score/mean"]) for row in rows(tmp_path)] == [
        (0, 100),
        (1, 201),
        (2, 202),
        (3, 203),
        (4, 204),
    ]
    status = places(tracked)
    assert status is not None
    assert status.weights_and_biases == str(tmp_path / "tracking/wandb")


async def test_what_a_tracker_says_after_the_end_is_stored(tmp_path: Path) -> None:
    """The job fails before the tracker's process has begun."""

    class Storing(LocalBroker):
        async def flush(self) -> None:
            self.stored = self.status

    rollout = {"sampling": {"maxTokens": 7}, "parallelism": {"mode": "Adaptive", "profile": str(tmp_path / "none")}}
    spec = RLJobSpec.model_validate(tracked_spec(OFFLINE).to_json() | {"rollout": rollout})
    broker = Storing(1)
    ending, _ = await drive(Job("uid", spec, tmp_path, 1, "sums"), broker)
    assert ending is Ending.FAILED
    training = broker.stored.training
    assert training is not None
    assert training.state == TrainingState.FAILED
    assert training.tracking is not None
    assert training.tracking.weights_and_biases == str(tmp_path / "tracking/wandb")


async def test_a_process_that_is_killed_costs_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracked = opened(tmp_path, tracked_spec(OFFLINE))
    started: list[int] = []
    launch = asyncio.create_subprocess_exec

    async def noted(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        process = await launch(*arguments, **options)
        started.append(process.pid)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    tracked.start()
    write_records(tmp_path, 1, 0, 1)
    await eventually_async(lambda: places(tracked))
    assert os.getpriority(os.PRIO_PROCESS, started[0]) == 19
    clients = _children(started[0])
    os.kill(started[0], signal.SIGKILL)
    write_records(tmp_path, 1, 2)
    await eventually_async(lambda: len(started) >= 2)
    await tracked.finish("done")
    assert [row["_step"] for row in rows(tmp_path)] == [0, 1, 2]
    # The client's own process.
    assert clients
    await eventually_async(lambda: not any(map(_is_alive, clients)))


def _children(process: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def _is_alive(process: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False


async def test_places_of_an_earlier_start_stay_beside_those_of_this_one(tmp_path: Path) -> None:
    earlier = TrackingStatus(mlflow="https://mlflow.example.com/#/experiments/1/runs/2")
    spec = tracked_spec({"weightsAndBiases": {"project": "sums", "mode": "Offline"}})
    tracked = Trackers(spec, tmp_path, 2, "sums", asyncio.Event(), None, earlier)
    assert places(tracked) == earlier
    tracked.start()
    write_records(tmp_path, 1, 0)
    shown = await eventually_async(lambda: places(tracked), right=lambda shown: shown and shown.weights_and_biases)
    assert shown.mlflow == earlier.mlflow
    await tracked.finish("done")


@pytest.mark.extended
async def test_a_server_that_is_away_for_a_whole_job_is_said_and_no_step_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, launch = asyncio.Event(), asyncio.create_subprocess_exec

    async def held(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        await ended.wait()
        return await launch(*arguments, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", held)
    site = Site(tmp_path, tracked_spec(mlflow(AWAY), steps=5))
    driver = site.driver()
    tracked = Trackers(site.spec, tmp_path, 1, "sums", site.reporter.stages.news, None)
    site.reporter.sources.append(tracked)
    tracked.start()
    assert await driver.run() is RunOutcome.DONE
    # No tracker has been able to start yet: no step has waited for one.
    assert [record.step for record in read_records(tmp_path)] == list(range(6))
    assert problem_of(tracked) is None
    ended.set()
    await tracker_problem(tracked)
    site.reporter.publish()
    assert site.broker.status.problem is not None
    assert site.broker.status.problem.reason == "TrackingFailed"
    assert site.broker.status.problem.field == "spec.tracking.mlflow.trackingUri"
    assert AWAY in site.broker.status.problem.message
    assert not site.broker.status.problem.fatal
    await tracked.finish("done")


async def test_a_server_that_never_answers_does_not_hold_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "ENDED_SECONDS", 0.5)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1000000")
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        tracked = opened(tmp_path, tracked_spec(mlflow(f"http://127.0.0.1:{deaf.getsockname()[1]}")))
        tracked.start()
        write_records(tmp_path, 1, 0)
        connection, _ = await asyncio.to_thread(deaf.accept)
        with connection:
            assert await asyncio.to_thread(connection.recv, 1), "the client has asked"
            await tracked.finish("done")
            with connection.makefile("rb") as request:
                request.read()  # to its end: the client has ended


async def test_a_client_that_hangs_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "SILENCE_SECONDS", 0.05)
    tracked = opened(tmp_path, tracked_spec(OFFLINE))
    tracked.start()
    problem = await tracker_problem(tracked)
    assert "hangs" in problem.message
    monkeypatch.setattr(trackers, "SILENCE_SECONDS", DEADLINE_SECONDS)
    await eventually_async(lambda: problem_of(tracked) is None)
    await tracked.finish(None)


@pytest.mark.extended
async def test_a_secret_that_is_created_later_is_found(tmp_path: Path) -> None:
    server, secrets = Server(), tmp_path / "secrets"
    secrets.mkdir()
    spec = tracked_spec(mlflow(server.url, secret={"name": "mlflow"}))
    tracked = opened(tmp_path, spec, secrets=secrets)
    tracked.start()
    write_records(tmp_path, 1, 0)
    problem = await tracker_problem(tracked)
    assert problem.field == "spec.tracking.mlflow.secret"
    assert not server.runs
    (secrets / "MLFLOW_TRACKING_TOKEN").write_text("token")
    await eventually_async(lambda: problem_of(tracked) is None and server.runs)
    assert server.authorizations == {"Bearer token"}
    await tracked.finish(None)
    server.close()


async def test_an_image_without_the_client_is_said_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb.py").write_text("raise ModuleNotFoundError(\"No module named 'wandb'\")\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    tracked = opened(tmp_path, tracked_spec(OFFLINE))
    tracked.start()
    problem = await tracker_problem(tracked)
    assert problem.field == "spec.tracking.weightsAndBiases"
    assert "extra `tracking`" in problem.message
    await tracked.finish("done")


def test_a_job_keeps_its_run(tmp_path: Path) -> None:
    assert run_id(tmp_path) == run_id(tmp_path)
    assert run_id(tmp_path) != run_id(tmp_path / "other")
