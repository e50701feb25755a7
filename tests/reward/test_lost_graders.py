"""Graders that are killed while they grade cost the samples that they had no attempt; a sample that kills them each time is given up."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from longboat_crds.rewards import RewardSpec
from longboat_runtime.reward.attempts import GRADE_ATTEMPTS, MOST_LOST_WHILE_GRADED, Attempts
from longboat_runtime.reward.client import GraderClient
from longboat_runtime.reward.result import FunctionOutcome, OutcomeKind, RewardSample
from tests.reward.conftest import GRADERS_UID, as_graders_user

REWARD = RewardSpec.model_validate({"name": "code", "kind": "Sandbox", "sandbox": {}})
ROW = {"input_output": '{"inputs": ["3"], "outputs": ["9"]}'}
# It waits until it may go on: it is being graded as long as that.
WAITS = "import os, time\nwhile not os.path.exists({gate!r}): time.sleep(0.01)\nprint(int(input()) ** 2)"
PROGRAM = """
import sys
from pathlib import Path
from longboat_runtime.reward.graders.server import main
main(Path(sys.argv[1]), 3)
"""


class Container:
    """What a kubelet does: starts graders again whenever they have ended."""

    def __init__(self, directory: Path) -> None:
        self.socket, self._directory = directory / "graders.sock", directory
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [*as_graders_user(), sys.executable, "-c", PROGRAM, str(self.socket)],
            env={**os.environ, "TMPDIR": str(self._directory)},
        )

    def kill(self) -> None:
        """At once, as for want of memory: the kernel ends zygotes with it, and so all that they have started."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()


@pytest.fixture
def container(graders_directory: Path) -> Iterator[Container]:
    directory = graders_directory / "container"
    directory.mkdir(exist_ok=True)
    if os.getuid() == 0:
        os.chown(directory, GRADERS_UID, GRADERS_UID)
    container = Container(directory)
    yield container
    container.end()


@pytest_asyncio.fixture
async def client(container: Container) -> AsyncIterator[GraderClient]:
    client = GraderClient(container.socket)
    assert await client.load(REWARD, "spec.rewards[0]") is None
    yield client
    await client.close()


async def graded(client: GraderClient, program: str) -> tuple[FunctionOutcome, Attempts]:
    """As the pool does it."""
    attempts, outcomes = Attempts(), {}
    sample = RewardSample(program, "", columns=ROW)
    while attempts.left:
        outcomes = {"code": await client.grade("code", sample, 600.0, 0, alone=attempts.alone)}
        if attempts.count(outcomes) and outcomes["code"].kind is not OutcomeKind.GRADER_ERROR:
            break
    return attempts.final(outcomes)["code"], attempts


async def running(client: GraderClient, count: int) -> None:
    state: Mapping[str, Any] = {}
    while state.get("running") != count:
        with suppress(ConnectionError):
            state = await client.state()
        await asyncio.sleep(0.02)


async def test_what_was_graded_beside_the_cause_costs_no_attempt(container: Container, client: GraderClient) -> None:
    gate = container.socket.parent / "gate"
    # Its directory is hidden from programs, but not whether something is there.
    grading = [asyncio.create_task(graded(client, WAITS.format(gate=str(gate)))) for _ in range(8)]
    await running(client, 3)
    container.kill()
    container.start()
    # One after the other now are those that were being graded, after the others.
    gate.touch()
    outcomes = await asyncio.gather(*grading)
    assert [(outcome.kind, outcome.score) for outcome, _ in outcomes] == [(OutcomeKind.SCORED, 1.0)] * 8
    assert sum(attempts.lost_while_graded for _, attempts in outcomes) == 3
    assert all(attempts.failed == 1 for _, attempts in outcomes)
    assert GRADE_ATTEMPTS > 1


async def test_what_ends_its_graders_each_time_ends_as_a_grader_error(
    container: Container, client: GraderClient
) -> None:
    grading = asyncio.create_task(graded(client, "import time; time.sleep(1e6)"))
    for _ in range(MOST_LOST_WHILE_GRADED):
        await running(client, 1)
        container.kill()
        container.start()
    outcome, attempts = await grading
    assert outcome.kind is OutcomeKind.GRADER_ERROR
    assert "lost 3 times" in outcome.message
    assert attempts.failed == 0
    assert (await graded(client, "print(int(input()) ** 2)"))[0].score == 1.0


async def test_what_was_lost_while_it_was_graded_is_graded_alone(container: Container, client: GraderClient) -> None:
    sample = RewardSample("print(int(input()) ** 2)", "", columns=ROW)
    gate = container.socket.parent / "second gate"
    waits = RewardSample(WAITS.format(gate=str(gate)), "", columns=ROW)
    before = asyncio.create_task(client.grade("code", waits, 600.0, 0))
    await running(client, 1)
    alone = asyncio.create_task(client.grade("code", sample, 600.0, 0, alone=True))
    after = asyncio.create_task(client.grade("code", sample, 600.0, 0))
    await asyncio.sleep(0)
    assert (await client.state())["running"] == 1
    gate.touch()
    assert [(await task).score for task in (before, alone, after)] == [1.0] * 3
