import os
import random
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from longboat_graders.episode_messages import EnvironmentFunction, EpisodeBounds, EpisodeResult, Launch
from longboat_runtime.episodes.client import EpisodeClient
from tests.reward.conftest import as_graders_user
from tests.support.waiting import DEADLINE_SECONDS

SECRET = "secret-of-an-episode"
MIB = 2**20
BOUNDS = EpisodeBounds(memory=512 * MIB, processes=32, file_size=16 * MIB, wall_seconds=3600.0)
# Plays what the task says.
ANY = """
import asyncio, ctypes, json, mmap, os, signal, subprocess, sys, tempfile, textwrap, threading, time

async def episode(task, model):
    scope = dict(globals())
    exec("async def given(task, model):\\n" + textwrap.indent(task["source"], "    "), scope)
    return await scope["given"](task["task"], model)
"""
# Environments with such long limits of their own that they don't fail on a machine that stalls.
_PROGRAM = f"""
import sys
from pathlib import Path
from longboat_graders import episodes, keeper, zygote_process
episodes.STUCK_SECONDS = zygote_process.LOAD_SECONDS = {DEADLINE_SECONDS}
socket, config_maps, *temporary = sys.argv[1:]
episodes.main(Path(socket), Path(config_maps), [Path(each) for each in temporary])
"""


@dataclass
class Endpoint:
    """A small OpenAI-compatible endpoint: `replies` makes the message that answers a request's body."""

    url: str = ""
    replies: Callable[[dict[str, Any]], dict[str, Any] | web.Response] = lambda body: {"content": "hello"}
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        self.keys.add(request.headers["Authorization"])
        message = self.replies(body)
        if isinstance(message, web.Response):
            return message
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **message}}
        return web.json_response(
            {"id": "a", "object": "chat.completion", "created": 0, "model": body["model"], "choices": [choice]}
        )


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    served, app = Endpoint(), web.Application()
    app.router.add_post("/v1/chat/completions", served.chat)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    served.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield served
    await runner.cleanup()


def start_environments_in(directory: Path) -> subprocess.Popen[bytes]:
    """Starts a server as an environment pod runs it: not as root. Its socket is `environments.sock` in the directory.

    `temporary` in it stands for what only environments use, such as /tmp in their container.
    """
    (directory / "temporary").mkdir(exist_ok=True)
    if os.getuid() == 0:
        for path in (directory, directory / "temporary"):
            os.chown(path, 10002, 10002)
    arguments = [str(directory / "environments.sock"), str(directory), str(directory / "temporary")]
    environment = {**os.environ, "TMPDIR": str(directory)}
    return subprocess.Popen([*as_graders_user(), sys.executable, "-c", _PROGRAM, *arguments], env=environment)


@contextmanager
def running_environments(directory: Path) -> Iterator[Path]:
    process = start_environments_in(directory)
    try:
        yield directory / "environments.sock"
    finally:
        process.terminate()
        assert process.wait() == 0


@contextmanager
def open_directory() -> Iterator[Path]:
    """A directory with a short name, since a socket's path holds 107 bytes, and open to the environments' uid."""
    with tempfile.TemporaryDirectory(prefix="lb-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    with open_directory() as path:
        yield path


@pytest.fixture(scope="module")
def environments(directory: Path) -> Iterator[Path]:
    with running_environments(directory) as socket:
        yield socket


@pytest.fixture(autouse=True)
def _patient_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longboat_graders.client.CONNECT_SECONDS", DEADLINE_SECONDS)


@pytest.fixture
async def client(environments: Path) -> AsyncIterator[EpisodeClient]:
    opened = EpisodeClient(environments)
    yield opened
    await opened.close()


@dataclass
class Player:
    """Plays environments of a directory against an endpoint."""

    client: EpisodeClient
    directory: Path
    endpoint: Endpoint
    numbers: int = 0

    async def load(self, source: str, function: str, name: str = "tested") -> str:
        """Loads an environment whose module has this text; returns its name. Others of its name are loaded no more."""
        self.numbers += 1
        path = self.directory / (f"{name}.py" if source == ANY else f"{name}_{id(self)}_{self.numbers}.py")
        path.write_text(source)
        path.chmod(0o644)
        problem = await self.client.load(EnvironmentFunction(name, f"{path}:{function}", None), "spec.environments[0]")
        if problem is not None:
            raise problem
        return name

    def launch(self, **bounds: Any) -> Launch:
        values = {name: getattr(BOUNDS, name) for name in EpisodeBounds.__slots__}
        return Launch(self.endpoint.url, SECRET, "policy", 7, EpisodeBounds(**{**values, **bounds}))

    async def play(
        self,
        name: str,
        task: dict[str, Any] | None = None,
        *,
        episode: str = "episode",
        started: Any = lambda: None,
        **bounds: Any,
    ) -> EpisodeResult:
        return await self.client.play(episode, name, task or {}, self.launch(**bounds), started)

    async def play_source(self, source: str, task: dict[str, Any] | None = None, **arguments: Any) -> EpisodeResult:
        """Plays the body of an `async def episode(task, model)`, which has the usual modules."""
        if "any" not in self.client._loaded:
            assert await self.load(ANY, "episode", "any") == "any"
        return await self.play("any", {"source": source.strip(), "task": task or {}}, **arguments)


@pytest.fixture
def player(client: EpisodeClient, directory: Path, endpoint: Endpoint) -> Player:
    return Player(client, directory, endpoint)


def episode_directories(directory: Path) -> set[Path]:
    """Directories of episodes, all of which are of the server below."""
    return set(directory.glob("longboat-graders-*/*/*"))


def marked(mark: str) -> list[int]:
    """Processes with `mark` among their arguments."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes().split(b"\0"):
                pids.append(int(path.parent.name))
        except OSError:
            continue
    return pids


@pytest.fixture
def mark() -> str:
    """An argument by which `sleep` sleeps for ever, and by which its process is known."""
    return f"{random.randrange(10**8, 10**9)}.{random.randrange(10**8)}"


@pytest.fixture
def own_directory() -> Iterator[Path]:
    """A directory for a server of the test's own."""
    with tempfile.TemporaryDirectory(prefix="lb-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory
