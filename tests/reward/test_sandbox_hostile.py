"""What a program in a response can do to its grade, its case runner, the samples beside it and the machine: nothing. Real processes, not as root.

Here a sample of the variants of every class is tried; `python -m bench.run sandbox` tries all of them, and says how long the next grade took.
"""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from longboat_graders.process_tree import children
from longboat_graders.result import RewardSample
from longboat_runtime.reward.client import GraderClient
from tests.reward.conftest import LONG, running_graders
from tests.reward.containment import (
    HONEST_ROW,
    PYTHON,
    loaded,
    tried,
    victim_and_secrets,
    without_sandbox,
)
from tests.reward.hostile_responses import GROUPS, RESPONSES, SAMPLE, Harm, Way
from tests.support.waiting import eventually_async

# `make test` runs one of each group.
FIRST = {RESPONSES[name].group: name for name in reversed(SAMPLE)}.values()
VARIANTS = [pytest.param(name, marks=[] if name in FIRST else [pytest.mark.extended]) for name in SAMPLE]


@pytest.fixture(scope="module")
def victim(graders_directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    with victim_and_secrets(graders_directory) as process:
        yield process


@pytest.fixture(scope="module")
def server(graders_directory: Path) -> Iterator[tuple[Path, int]]:
    """The graders' socket, and the id of their process."""
    pids: list[int] = []
    with running_graders(graders_directory, started=pids.append) as socket:
        yield socket, pids[0]


@pytest_asyncio.fixture
async def client(server: tuple[Path, int]) -> AsyncIterator[GraderClient]:
    client = await loaded(server[0])
    yield client
    await client.close()


@pytest.mark.parametrize("name", VARIANTS)
async def test_no_program_does_harm(
    client: GraderClient, server: tuple[Path, int], victim: subprocess.Popen[bytes], name: str
) -> None:
    """And the next sample needs no new graders: those that were there grade it, the processes that they fork theirs from included."""
    zygotes = set(children(server[1]))
    assert len(zygotes) == 2
    assert (await tried(client, RESPONSES[name], victim, lambda: 0.0)).harm is None
    assert zygotes <= set(children(server[1]))


async def test_nothing_is_left_in_the_directories(client: GraderClient, graders_directory: Path) -> None:
    for name in [name for name in SAMPLE if RESPONSES[name].harm is Harm.TRAPS]:
        sample = RewardSample(RESPONSES[name].text, "", columns=HONEST_ROW)
        await client.grade(PYTHON.name, sample, LONG, 0)
    await eventually_async(lambda: in_directories(graders_directory), right=lambda left: not left)


def in_directories(directory: Path) -> list[Path]:
    try:
        return list(directory.glob("longboat-graders-*/hostile-*/*/run/*"))
    except FileNotFoundError:
        return [directory]  # something in it is being removed


@pytest.fixture(scope="module")
def unprotected(
    graders_directory: Path, server: tuple[Path, int], request: pytest.FixtureRequest
) -> dict[str, str | None]:
    """Returns what each response that tests ask for does in a directory of the graders' user."""
    asked = [item for item in request.session.items if "unprotected" in getattr(item, "fixturenames", ())]
    return without_sandbox(graders_directory, [item.callspec.params["name"] for item in asked])  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", VARIANTS)
def test_every_program_does_its_harm_without_the_sandbox(name: str, unprotected: dict[str, str | None]) -> None:
    assert unprotected[name] is not None


def test_there_are_variants_enough() -> None:
    assert len(RESPONSES) >= 200
    assert len(GROUPS) >= 12
    assert {RESPONSES[name].group for name in SAMPLE} == set(GROUPS)
    assert {RESPONSES[name].way for name in SAMPLE} == set(Way)
