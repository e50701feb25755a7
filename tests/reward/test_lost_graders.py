"""Graders that are killed while they grade cost the samples that they had no attempt; a sample that kills them each time is given up."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from longboat_crds.rewards import RewardSpec
from longboat_graders.messages import FunctionOutcome, OutcomeKind
from longboat_graders.result import RewardSample
from longboat_runtime.reward import pool as pools
from longboat_runtime.reward.attempts import MOST_LOST_WHILE_GRADED
from longboat_runtime.reward.client import GraderClient
from longboat_runtime.reward.queue import Group
from longboat_runtime.reward.worker import GradeRequest
from longboat_runtime.samples import FinishReason, Response, SampleId
from tests.reward.conftest import start_graders_in
from tests.support.waiting import eventually_async

REWARD = RewardSpec.model_validate({"name": "code", "kind": "Sandbox", "sandbox": {}, "timeoutSeconds": 3600})
ROW = {"input_output": '{"inputs": ["3"], "outputs": ["9"]}'}
# As Ray names its nodes.
NODE = 28 * "ab"
SQUARE = "print(int(input()) ** 2)"
# Waits until the gate exists: its grade runs until then.
WAITS = "import os, time\nwhile not os.path.exists({gate!r}): time.sleep(0.01)\nprint(int(input()) ** 2)"


class Container:
    """What a kubelet does: starts graders again whenever they have ended."""

    def __init__(self, directory: Path) -> None:
        self.socket, self._directory = directory / "graders.sock", directory
        self.start()

    def start(self) -> None:
        self._process = start_graders_in(self._directory, 3)

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
    container = Container(directory)
    yield container
    container.end()


@pytest_asyncio.fixture
async def client(container: Container) -> AsyncIterator[GraderClient]:
    client = GraderClient(container.socket)
    assert await client.load(REWARD, "spec.rewards[0]") is None
    yield client
    await client.close()


class Actors:
    """What the pool uses of Ray, with actors in this process; `asked` are the requests that workers got."""

    def __init__(self) -> None:
        self.asked: list[GradeRequest] = []

    def remote(self, kind: Callable[..., Any]) -> Any:
        def start(*arguments: Any) -> Any:
            return _Actor(kind(*arguments), self.asked)

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=start))

    def kill(self, actor: Any) -> None: ...


class _Actor:
    def __init__(self, worker: Any, asked: list[GradeRequest]) -> None:
        self._worker, self._asked = worker, asked

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> asyncio.Future[Any]:
            if name in ("submit", "answers"):
                self._asked += arguments[0]
            return asyncio.ensure_future(getattr(self._worker, name)(*arguments))

        return SimpleNamespace(remote=call)


class Pool:
    """A real pool of one node, whose graders are the container's. Each program that it is given is another sample's."""

    def __init__(self, actors: Actors, container: Container) -> None:
        self._actors, self._texts, self._begun = actors, list[str](), set[int]()
        self.pool = pools.RewardPool("code", {0: REWARD}, self, container.socket, {})  # type: ignore[arg-type]
        self.pool.follow({NODE: 3})

    async def begun(self, count: int) -> None:
        """Waits until the worker knows that `count` more grades have begun: those are lost while they are graded."""
        graders = self.pool._workers[NODE].actor._worker._graders
        more = await eventually_async(lambda: graders._begun - self._begun, lambda more: len(more) == count)
        self._begun |= more

    async def responses(self, ids: Sequence[SampleId], *, token_ids: bool = False) -> dict[SampleId, Response]:
        return {each: Response(self._texts[each.row], FinishReason.STOP, 3) for each in ids}

    async def grade(self, program: str) -> tuple[FunctionOutcome, list[bool]]:
        """Its outcome, and for each time that it was asked for whether it was to be graded alone."""
        self._texts.append(program)
        sample = SampleId(0, len(self._texts) - 1, 0, 0)
        outcomes = await self.pool.grade(
            (sample,), RewardSample("", "", columns=ROW), [REWARD], Group(sample.row, 0, 1)
        )
        return outcomes["code"], [request.alone for request in self._actors.asked if request.samples == (sample,)]


@pytest_asyncio.fixture
async def pool(container: Container, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pool]:
    actors = Actors()
    monkeypatch.setattr(pools, "ray", actors)
    pool = Pool(actors, container)
    await pool.pool.ready()
    yield pool
    await pool.pool.close()


async def running(client: GraderClient, count: int) -> None:
    """Waits until `count` grades run, also while the graders restart."""

    async def state() -> Mapping[str, Any]:
        with suppress(ConnectionError):
            return await client.state()
        return {}

    await eventually_async(state, right=lambda state: state.get("running") == count)


async def test_what_was_graded_beside_the_cause_costs_no_attempt(container: Container, pool: Pool) -> None:
    gate = container.socket.parent / "gate"
    # Its directory is hidden from programs, but not whether something is there.
    grading = [asyncio.create_task(pool.grade(WAITS.format(gate=str(gate)))) for _ in range(8)]
    await pool.begun(3)
    container.kill()
    container.start()
    # One after the other now are those that were being graded, after the others.
    gate.touch()
    graded = await asyncio.gather(*grading)
    assert [(outcome.kind, outcome.score) for outcome, _ in graded] == [(OutcomeKind.SCORED, 1.0)] * 8
    # Three were being graded, and they alone are from then on; no other was asked for twice unless it waited there.
    assert sum(alone for _, asked in graded for alone in asked) == 3
    assert all(not asked[0] for _, asked in graded)


async def test_graders_that_are_lost_cost_no_attempt_however_often(container: Container, pool: Pool) -> None:
    """As often as a sample may be graded in all, if it fails: it is graded once more."""
    gate = container.socket.parent / "third gate"
    grading = asyncio.create_task(pool.grade(WAITS.format(gate=str(gate))))
    for _ in range(MOST_LOST_WHILE_GRADED - 1):
        await pool.begun(1)
        container.kill()
        container.start()
    gate.touch()
    outcome, asked = await grading
    assert (outcome.kind, outcome.score) == (OutcomeKind.SCORED, 1.0)
    assert asked == [False, True, True]


async def test_what_ends_its_graders_each_time_ends_as_a_grader_error(container: Container, pool: Pool) -> None:
    grading = asyncio.create_task(pool.grade("import time; time.sleep(1e6)"))
    for _ in range(MOST_LOST_WHILE_GRADED):
        await pool.begun(1)
        container.kill()
        container.start()
    outcome, asked = await grading
    assert outcome.kind is OutcomeKind.GRADER_ERROR
    assert "lost 3 times" in outcome.message
    assert asked == [False, True, True]
    assert (await pool.grade(SQUARE))[0].score == 1.0


async def test_what_killed_graders_leave_is_removed_by_the_next(container: Container, client: GraderClient) -> None:
    assert (await client.grade("code", RewardSample(SQUARE, "", columns=ROW), 600.0, 0)).score == 1.0
    directories = container.socket.parent
    (before,) = directories.glob("longboat-graders-*")
    container.kill()
    container.start()
    await running(client, 0)
    assert (await client.grade("code", RewardSample(SQUARE, "", columns=ROW), 600.0, 0)).score == 1.0
    (after,) = directories.glob("longboat-graders-*")
    assert after != before


async def test_what_was_lost_while_it_was_graded_is_graded_alone(container: Container, client: GraderClient) -> None:
    sample = RewardSample(SQUARE, "", columns=ROW)
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
