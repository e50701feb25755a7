"""Graders of a run without Kubernetes: what they grade neither takes the machine nor outlives them, whoever runs them."""

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from longboat_crds.rewards import RewardSpec
from longboat_graders import local
from longboat_graders.local import Boundary
from longboat_graders.messages import OutcomeKind
from longboat_graders.process_tree import children
from longboat_graders.result import RewardSample
from longboat_runtime.reward.client import GraderClient
from tests.reward.conftest import LONG, graded
from tests.reward.hostile_programs import TRUSTING
from tests.reward.local_site import CASES, MULTIPLYING, REWARDS, USER, control_group, processes, start
from tests.support.waiting import eventually, eventually_async

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root makes control groups and changes its user")

# The limit, in seconds, of responses that never end by themselves.
SHORT = 3.0


async def load(client: GraderClient, directory: Path) -> None:
    (directory / "trusting.py").write_text(TRUSTING)
    function = {"name": "function", "function": f"{directory}/trusting.py:run", "isolation": "PerGrade"}
    for reward in (function, {"name": "program", "kind": "Sandbox", "sandbox": {}}):
        assert await client.load(RewardSpec.model_validate(reward), "spec.rewards[0]") is None


def sample(text: str) -> RewardSample:
    return RewardSample(text, "prompt", CASES["input_output"], columns=CASES)


@contextmanager
def graders_directory() -> Iterator[Path]:
    """A directory of a short name, since a socket's path holds 107 bytes, that other users may read."""
    with tempfile.TemporaryDirectory(prefix="lb-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@pytest.fixture(scope="module", params=[0, USER], ids=["root", "an ordinary user"])
def running(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The directory of running graders. When they have ended nothing of them is left."""
    with graders_directory() as directory, control_group() as group:
        program = start(group, directory, user=request.param)
        yield directory
        program.terminate()
        assert program.wait() == 0
        assert processes(group) == []
        assert not list(directory.glob("longboat-graders-*"))


@pytest_asyncio.fixture
async def client(running: Path) -> AsyncIterator[GraderClient]:
    client = GraderClient(running / "graders.sock")
    await load(client, running)
    yield client
    await client.close()


@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "forks" else [pytest.mark.extended]) for name in MULTIPLYING]
)
async def test_a_response_that_multiplies_is_ended_and_the_next_one_graded(
    client: GraderClient, reward: str, name: str
) -> None:
    outcome = await graded(client, reward, sample(MULTIPLYING[name]), SHORT)
    assert outcome.score == 0.0
    assert outcome.kind in (OutcomeKind.TIMEOUT, OutcomeKind.SCORED), outcome
    text, score = REWARDS[reward]
    honest = await graded(client, reward, sample(text), LONG)
    assert (honest.kind, honest.score) == (OutcomeKind.SCORED, score), honest


def makes_namespaces(user: int) -> bool:
    command = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
    if user:
        own = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        command = [*own, command[0], "--user", "--map-root-user", *command[1:]]
    return subprocess.run(command, check=False).returncode == 0


async def test_nobody_is_told_that_something_is_missing_where_the_kernel_allows_all(
    client: GraderClient, request: pytest.FixtureRequest
) -> None:
    user = request.node.callspec.params["running"]
    if not makes_namespaces(user):
        pytest.skip("this kernel makes no namespaces for that user")
    lines = (await client.state())["unenforced"]
    assert not [line for line in lines if "namespace" in line or "root" in line]


# Of graders that are started by root: all processes of this user are ended with them.
DRAWN = USER + 1
BOUNDARIES = {
    "namespaces and a user": Boundary(local._NEW_PIDS | local._NEW_MOUNTS, DRAWN),
    "namespaces": Boundary(local._NEW_PIDS | local._NEW_MOUNTS, None),
    "a user": Boundary(0, DRAWN),
    "nothing": Boundary(0, None),
}


# Without a namespace, what graders have started may outlive a guard that is killed.
ENDS = [
    (name, victim)
    for name, boundary in BOUNDARIES.items()
    for victim in ("none", "the server", "the guard")
    if victim != "the guard" or boundary.namespaces
]


@pytest.mark.parametrize(
    ("name", "victim"), [ENDS[0], *(pytest.param(*case, marks=pytest.mark.extended) for case in ENDS[1:])]
)
async def test_nothing_outlives_graders_that_end(name: str, victim: str) -> None:
    with graders_directory() as directory, control_group() as group:
        program = start(group, directory, boundary=BOUNDARIES[name])
        client = GraderClient(directory / "graders.sock")
        await load(client, directory)
        text = "import subprocess\nsubprocess.Popen(['sleep', '1000000'])\nimport time\ntime.sleep(1e6)"
        grading = client.grade("function", sample(text), LONG, 0)
        task = asyncio.create_task(grading)
        await eventually_async(lambda: asyncio.to_thread(_sleeps, group), right=bool)
        if victim == "none":
            program.terminate()
        else:
            [server] = children(program.pid)
            os.kill(program.pid if victim == "the guard" else server, signal.SIGKILL)
        assert (await task).kind is OutcomeKind.LOST
        program.wait()
        eventually(lambda: processes(group), lambda left: not left)
        await client.close()


def _sleeps(group: Path) -> bool:
    names = set()
    for pid in processes(group):
        try:
            names.add(Path(f"/proc/{pid}/comm").read_text().strip())
        except OSError:
            continue
    return "sleep" in names


@pytest.mark.parametrize(
    ("uid", "boundary", "words"),
    [
        (0, BOUNDARIES["namespaces and a user"], []),
        (0, BOUNDARIES["namespaces"], ["CAP_SETUID"]),
        (0, BOUNDARIES["a user"], ["PID namespace"]),
        (0, BOUNDARIES["nothing"], ["CAP_SETUID", "PID namespace"]),
        (USER, Boundary(local._NEW_USERS | local._NEW_PIDS | local._NEW_MOUNTS, None), []),
        (USER, BOUNDARIES["nothing"], ["user.max_user_namespaces", "PID namespace"]),
    ],
)
def test_what_is_missing_is_said_with_the_cure(uid: int, boundary: Boundary, words: list[str]) -> None:
    lines = boundary.missing(uid)
    assert [word in line for word, line in zip(words, lines, strict=True)] == [True] * len(words)
