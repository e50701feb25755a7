import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

from longboat_graders.messages import FunctionOutcome
from longboat_graders.result import RewardSample
from longboat_runtime.reward.client import GraderClient
from tests.support.waiting import DEADLINE_SECONDS, eventually_async

GRADERS_UID = 10002
# A limit, in seconds, that grades never reach if they end by themselves.
LONG = 600.0
# Graders with such long limits of their own that they don't fail on a machine that stalls.
_PROGRAM = f"""
import sys
from pathlib import Path
from longboat_graders import server, supervisor, zygote_process
supervisor.STUCK_SECONDS = zygote_process.LOAD_SECONDS = {DEADLINE_SECONDS}
supervisor.WALL_LIMIT_FACTOR = 1e6
socket, processes, config_maps, cgroup = sys.argv[1:]
server.main(Path(socket), int(processes), Path(config_maps), Path(cgroup) if cgroup else None)
"""


def as_graders_user() -> list[str]:
    """What to put before a command, so that it runs as graders in a pod do: not as root."""
    if os.getuid() != 0:
        return []
    # This machine's Python may lie in root's home; reading is all the capability gives.
    capabilities = [f"--{name}-caps=-all,+dac_read_search" for name in ("inh", "ambient")]
    user = [f"--reuid={GRADERS_UID}", f"--regid={GRADERS_UID}", "--clear-groups"]
    return ["setpriv", *user, "--bounding-set=-all,+dac_read_search", *capabilities]


def start_graders_in(directory: Path, processes: int, cgroup: Path | None = None) -> subprocess.Popen[bytes]:
    """Starts graders as a reward pod runs them: not as root. Their socket is `graders.sock` in the directory."""
    if os.getuid() == 0:
        os.chown(directory, GRADERS_UID, GRADERS_UID)
    arguments = [str(directory / "graders.sock"), str(processes), str(directory), str(cgroup or "")]
    environment = {**os.environ, "TMPDIR": str(directory)}
    return subprocess.Popen([*as_graders_user(), sys.executable, "-c", _PROGRAM, *arguments], env=environment)


@contextmanager
def running_graders(
    directory: Path, processes: int = 2, cgroup: Path | None = None, started: Callable[[int], None] = lambda pid: None
) -> Iterator[Path]:
    """Graders as a reward pod runs them: not as root. Yields their socket; ConfigMaps are looked for in `directory`.

    They follow the quota below `cgroup`; `started` gets the id of their process.
    """
    process = start_graders_in(directory, processes, cgroup)
    started(process.pid)
    try:
        yield directory / "graders.sock"
    finally:
        process.terminate()
        assert process.wait() == 0


@pytest.fixture(scope="session")
def start_graders() -> Callable[..., AbstractContextManager[Path]]:
    return running_graders


@pytest.fixture(scope="module")
def graders_directory() -> Iterator[Path]:
    # Short, since a socket's path holds 107 bytes, and open to the graders' uid.
    with tempfile.TemporaryDirectory(prefix="lb-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@pytest.fixture(scope="module")
def graders(graders_directory: Path) -> Iterator[Path]:
    with running_graders(graders_directory) as socket:
        yield socket


@pytest.fixture(autouse=True)
def _patient_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets clients in this process wait for graders that take long to start."""
    monkeypatch.setattr("longboat_graders.client.CONNECT_SECONDS", DEADLINE_SECONDS)


def process_state(pid: int) -> str:
    """One letter, as /proc has it; none if there is no such process."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def set_quota(cgroup: Path, text: str) -> None:
    """At once, as the kernel does: nobody reads a file that is only half written."""
    new = cgroup / "cpu.max.new"
    new.write_text(text)
    new.replace(cgroup / "cpu.max")


async def graded(
    client: GraderClient, reward: str, sample: RewardSample, seconds: float, seed: int = 0, own: float | None = None
) -> FunctionOutcome:
    """Grades a sample. Like a pool, repeats a grade that hardly got a CPU: limits are short, and other tests may take all CPUs."""

    async def grade() -> FunctionOutcome:
        return await client.grade(reward, sample, seconds, seed, own)

    return await eventually_async(grade, right=lambda outcome: "hardly got a CPU" not in outcome.message)
