"""Launches episodes that return at once, one by one and many at a time. Takes a minute, with nothing else on the machine."""

from __future__ import annotations

import argparse
import asyncio
import resource
import tempfile
import time
from pathlib import Path

from bench.record import Recorder
from longboat_graders.episode_messages import EnvironmentFunction, EpisodeBounds, Launch
from longboat_runtime.episodes.client import EpisodeClient
from tests.episodes.conftest import running_environments

SOURCE = "import time\nasync def episode(task, model):\n    return time.monotonic() - task['launched']\n"
_LAUNCH = Launch("http://127.0.0.1:9/v1", "none", "policy", 0, EpisodeBounds(512 * 2**20, 32, 2**20, 3600.0))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `make bench NAME=episodes`."""
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--at-once", type=int, nargs="*", default=[1, 4, 16])


def run(arguments: argparse.Namespace, path: Path) -> None:
    """Measures the time from a request until the environment's code runs, and the CPU of all processes. Appends to `path`."""
    recorder = Recorder(path, episodes=arguments.episodes, at_once=arguments.at_once)
    idle = _cpu_seconds(0, 1)[0]
    for at_once in arguments.at_once:
        cpu, seconds = _cpu_seconds(arguments.episodes, at_once)
        recorder.write("launches", at_once=at_once, seconds=seconds, cpu_seconds=(cpu - idle) / arguments.episodes)
    recorder.close()


def _cpu_seconds(episodes: int, at_once: int) -> tuple[float, list[float]]:
    """Returns the CPU seconds of a server that has played so many episodes, and the seconds that each launch took."""
    before = _used()
    with tempfile.TemporaryDirectory(prefix="lb-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        with running_environments(directory) as socket:
            seconds = asyncio.run(_play(socket, directory, episodes, at_once))
    return _used() - before, seconds


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def _play(socket: Path, directory: Path, episodes: int, at_once: int) -> list[float]:
    client, slots, seconds = EpisodeClient(socket), asyncio.Semaphore(at_once), []
    file = directory / "empty.py"
    file.write_text(SOURCE)
    problem = await client.load(EnvironmentFunction("empty", f"{file}:episode", None), "spec.environments[0]")
    assert problem is None, problem

    async def play(number: int) -> None:
        async with slots:
            result = await client.play(str(number), "empty", {"launched": time.monotonic()}, _LAUNCH)
            assert result.reward is not None, result
            seconds.append(result.reward)

    await asyncio.gather(*map(play, range(episodes)))
    await client.close()
    return seconds
