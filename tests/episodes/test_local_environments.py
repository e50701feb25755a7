"""Environments of a run without Kubernetes: the same, as this user."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from longboat_graders.episode_messages import EpisodeEnd
from longboat_runtime.episodes.client import EpisodeClient
from tests.episodes.conftest import Endpoint, Player, episode_directories
from tests.support.waiting import eventually_async


async def test_they_play_as_this_user_and_end_with_their_parent(
    own_directory: Path, endpoint: Endpoint, mark: str
) -> None:
    socket = own_directory / "environments.sock"
    command = [sys.executable, "-m", "longboat_runtime.cli", "environments", "--socket", str(socket)]
    process = subprocess.Popen(  # noqa: ASYNC220 - it only starts it
        [*command, "--config-maps", str(own_directory), "--parent", str(os.getpid())],
        env={**os.environ, "TMPDIR": str(own_directory)},
    )
    player = Player(EpisodeClient(socket), own_directory, endpoint)
    user = await player.play_source("return os.getuid()")
    assert (user.end, user.reward) == (EpisodeEnd.FINISHED, os.getuid()), user.message
    assert any("as this user" in line for line in (await player.client.state())["unenforced"])
    assert (await player.play_source(f"subprocess.Popen(['sleep', '{mark}'])")).end is EpisodeEnd.FINISHED
    assert episode_directories(own_directory) == set()
    process.send_signal(signal.SIGTERM)
    assert await eventually_async(process.poll, right=lambda code: code is not None) == 0
    await player.client.close()
