import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

from longboat_runtime.reward.client import GraderClient
from longboat_runtime.reward.result import FunctionOutcome, RewardSample

GRADERS_UID = 10002
# The limit, in seconds, of grades that are to end by themselves: none gets near it.
LONG = 600.0
# How often a grade is tried that hardly gets a CPU.
_TRIES = 5
_PROGRAM = """
import sys
from pathlib import Path
from longboat_runtime.reward.graders.server import main
main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]) if sys.argv[4] else None)
"""


def as_graders_user() -> list[str]:
    """What to put before a command, so that it runs as graders in a pod do: not as root."""
    if os.getuid() != 0:
        return []
    # This machine's Python may lie in root's home; reading is all the capability gives.
    capabilities = [f"--{name}-caps=-all,+dac_read_search" for name in ("inh", "ambient")]
    user = [f"--reuid={GRADERS_UID}", f"--regid={GRADERS_UID}", "--clear-groups"]
    return ["setpriv", *user, "--bounding-set=-all,+dac_read_search", *capabilities]


@contextmanager
def running_graders(
    directory: Path, processes: int = 2, cgroup: Path | None = None, started: Callable[[int], None] = lambda pid: None
) -> Iterator[Path]:
    """Graders as a reward pod runs them: not as root. Yields their socket; ConfigMaps are looked for in `directory`.

    They follow the quota below `cgroup`; `started` gets the id of their process.
    """
    if os.getuid() == 0:
        os.chown(directory, GRADERS_UID, GRADERS_UID)
    socket = directory / "graders.sock"
    environment = {**os.environ, "TMPDIR": str(directory)}
    process = subprocess.Popen(
        [
            *as_graders_user(),
            sys.executable,
            "-c",
            _PROGRAM,
            str(socket),
            str(processes),
            str(directory),
            str(cgroup or ""),
        ],
        env=environment,
    )
    started(process.pid)
    try:
        yield socket
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
    """Its outcome. As pools do, grades again what hardly got a CPU, a few times: other tests may want them all, and limits are short here."""
    for _ in range(_TRIES):
        outcome = await client.grade(reward, sample, seconds, seed, own)
        if "hardly got a CPU" not in outcome.message:
            break
    return outcome
