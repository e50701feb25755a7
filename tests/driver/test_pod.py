"""A driver in its pod, with a fake of its channel to the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client.configuration import Configuration
from typer.testing import CliRunner

from longboat_crds.incarnations import UNANSWERED, UNANSWERED_EXIT_CODE
from longboat_crds.reasons import Reason
from longboat_operator.reading.terminations import terminations
from longboat_runtime.agent.agent import termination_message
from longboat_runtime.cli import app
from longboat_runtime.contact import Contact
from longboat_runtime.driver import pod
from longboat_runtime.driver.broker import Superseded
from longboat_runtime.driver.main import Ending
from longboat_runtime.driver.own_job import NoAnswer, OwnJob
from tests.support.ports import free_port
from tests.support.waiting import eventually_async


class NumbersAlone:
    """Notes the least number that a start asks for, and ends the start there."""

    last_error: str | None = None

    def __init__(self) -> None:
        self.least: list[int] = []
        self.request_stored = asyncio.Event()

    async def start(self) -> dict[str, Any]:
        return {}

    async def incarnation(self, least: int) -> int:
        self.least.append(least)
        raise Superseded("the test is over")

    async def close(self) -> None: ...


@pytest.mark.parametrize(("names", "least"), [([], 1), (["1", "2", "10", "lost+found"], 11)])
async def test_a_start_asks_for_a_number_beyond_all_on_the_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], least: int
) -> None:
    """Numbers that the API server granted are forgotten when it is restored from a backup; their files are not."""
    for name in names:
        (tmp_path / "incarnations" / name).mkdir(parents=True)
    broker = NumbersAlone()
    monkeypatch.setattr(pod, "CHECKPOINT", tmp_path)
    monkeypatch.setattr(pod, "load_incluster_config", lambda configuration: None)
    monkeypatch.setattr(pod, "KubernetesBroker", lambda *arguments: broker)
    ending = await pod.drive_in_pod("job", "team", "127.0.0.1:6379", contact=Contact(tmp_path / "contact"))
    assert ending is Ending.SUPERSEDED
    assert broker.least == [least]


class Refused:
    """An API server that refuses every request, until it no longer does. `looks` counts how often a driver looked how."""

    def __init__(self, error: str) -> None:
        self._last_error: str | None = error
        self.request_stored = asyncio.Event()
        self.looks = 0
        self.begun = False

    @property
    def last_error(self) -> str | None:
        self.looks += 1
        return self._last_error

    async def start(self) -> dict[str, Any]:
        return {}

    async def incarnation(self, least: int) -> int:
        self.begun = True
        await self.request_stored.wait()
        raise Superseded("the test is over")

    async def close(self) -> None: ...

    def serve(self) -> None:
        self._last_error = None
        self.request_stored.set()


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Refused], Awaitable[Ending]]:
    """Starts a driver in one pod, whose file of the first answer stays."""
    monkeypatch.setattr(pod, "CHECKPOINT", tmp_path)
    monkeypatch.setattr(pod, "ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(pod, "load_incluster_config", lambda configuration: None)

    async def drive(server: Refused) -> Ending:
        monkeypatch.setattr(pod, "KubernetesBroker", lambda *arguments: server)
        return await pod.drive_in_pod("job", "team", "127.0.0.1:6379", contact=Contact(tmp_path / "contact"))

    return drive


async def test_a_first_start_without_an_answer_ends_with_the_cause_and_the_next_one_waits(
    start: Callable[[Refused], Awaitable[Ending]], tmp_path: Path
) -> None:
    with pytest.raises(pod.Unanswered, match=f"{UNANSWERED} within .* s: 403: rljobs is forbidden"):
        await start(Refused("403: rljobs is forbidden"))
    assert not Contact(tmp_path / "contact").answered
    server = Refused("403: rljobs is forbidden")
    waiting = asyncio.create_task(start(server))
    await eventually_async(lambda: server.looks >= 3)
    server.serve()
    assert await waiting is Ending.SUPERSEDED
    assert Contact(tmp_path / "contact").answered


async def test_each_other_cause_ends_one_more_start(
    start: Callable[[Refused], Awaitable[Ending]], tmp_path: Path
) -> None:
    causes = ("connection refused", "403: rljobs is\nforbidden")
    for cause in causes:
        with pytest.raises(pod.Unanswered, match=cause):
            await start(Refused(cause))
    for cause in causes:
        server = Refused(cause)
        waiting = asyncio.create_task(start(server))
        await eventually_async(lambda: server.looks >= 3)  # noqa: B023 - awaited here
        server.serve()
        assert await waiting is Ending.SUPERSEDED
        (tmp_path / "contact").write_text("\n".join(" ".join(cause.split()) for cause in causes))


async def test_once_a_driver_of_the_pod_had_an_answer_later_ones_wait(
    start: Callable[[Refused], Awaitable[Ending]],
) -> None:
    first = Refused("")
    first.serve()
    assert await start(first) is Ending.SUPERSEDED
    later = Refused("connection refused")
    waiting = asyncio.create_task(start(later))
    await eventually_async(lambda: later.begun)
    later.serve()
    assert await waiting is Ending.SUPERSEDED
    assert not later.looks


def test_the_command_says_why_last_and_has_an_exit_status_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unanswered(*_: Any) -> Ending:
        raise pod.Unanswered(f"{UNANSWERED} within 45 s: 403: rljobs is forbidden")

    monkeypatch.setattr(pod, "drive_in_pod", unanswered)
    monkeypatch.setattr("longboat_graders.prctl.hide_memory", lambda: None)
    result = CliRunner().invoke(app, ["driver", "--job", "job", "--namespace", "team"])
    assert result.exit_code == UNANSWERED_EXIT_CODE
    words = result.stderr.splitlines()
    assert words[-1] == f"driver failed: {UNANSWERED} within 45 s: 403: rljobs is forbidden"
    message = termination_message("driver", result.exit_code, words)
    status = {"name": "driver", "restartCount": 1, "lastState": {"terminated": {"exitCode": 75, "message": message}}}
    [end] = terminations([status])
    assert end.reason is Reason.DRIVER_SILENT
    assert end.text == "the driver had no answer from the API server within 45 s: 403: rljobs is forbidden"
    assert not end.counted


async def test_no_proxy_stands_between_driver_and_api_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"path": request.path})

    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("no_proxy", "10.96.0.0/12")
    server = web.Application()
    server.router.add_get("/{path:.*}", answer)
    async with TestServer(server) as serving:
        own = OwnJob(Configuration(host=str(serving.make_url("/")).rstrip("/")), "team", "job")
        assert (await own.get())["path"].endswith("/team/rljobs/job")
        await own.close()


async def test_what_a_request_without_an_answer_met_is_said_in_words() -> None:
    """The same words in each start: other ones would be another cause."""
    own = OwnJob(Configuration(host=f"https://127.0.0.1:{free_port()}"), "team", "job")
    with pytest.raises(NoAnswer) as met:
        await own.get()
    assert "object at 0x" not in str(met.value)
    assert "Cannot connect to host 127.0.0.1" in str(met.value)
    await own.close()
