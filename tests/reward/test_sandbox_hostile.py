"""What a program in a response can do to its grade, its judge, the samples beside it and the machine: nothing. Real processes, not as root.

Here a sample of the variants of every class is tried; `python -m tests.reward.test_sandbox_hostile` tries all of them, with and without the sandbox,
and prints how long the next grade took.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from longboat_crds.rewards import RewardSpec
from longboat_runtime.reward.client import GraderClient
from longboat_runtime.reward.result import FunctionOutcome, OutcomeKind, RewardSample
from tests.reward.conftest import as_graders_user, running_graders
from tests.reward.hostile_neighbours import SECRET
from tests.reward.hostile_responses import LIMITS, RESPONSES, SAMPLE, Harm, Response, columns
from tests.reward.unprotected import left, own_arguments

REWARD = RewardSpec.model_validate({"name": "hostile", "kind": "Sandbox", "sandbox": LIMITS})
# Limits of a case, in seconds: for hostile programs, and for honest ones, which share the machine with them.
HOSTILE_SECONDS, HONEST_SECONDS = 2.0, 120.0
HONEST = """
import subprocess, sys, threading
number = int(input())
found = []
thread = threading.Thread(target=lambda: found.append(number ** 2)); thread.start(); thread.join()
open('file', 'w').write(str(found[0]))
child = subprocess.run(['cat', 'file'], capture_output=True, text=True)
print(child.stdout)
"""
HONEST_ROW = {"input_output": json.dumps({"inputs": ["3", "5", "12"], "outputs": ["9", "25", "144"]})}


@contextmanager
def victim_and_secrets(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the graders' user that none of theirs may harm, and files above all their directories."""
    for name in ("secret", "secret.copy"):
        path = directory / name
        path.write_text(SECRET + secrets.token_hex(8))
        path.chmod(0o666)
    victim = subprocess.Popen([*as_graders_user(), "sleep", own_arguments()[0]])
    try:
        yield victim
    finally:
        victim.kill()
        victim.wait()


async def loaded(socket: Path) -> GraderClient:
    client = GraderClient(socket)
    assert await client.load(REWARD, "spec.rewards[0]") is None
    return client


async def honest(client: GraderClient) -> FunctionOutcome:
    return await client.grade("hostile", RewardSample(HONEST, "", columns=HONEST_ROW), HONEST_SECONDS, 0)


async def harm(client: GraderClient, response: Response, victim: subprocess.Popen[bytes]) -> str | None:
    """What it did in the sandbox, beside an honest sample, to either grade, to the next one, or to the machine."""
    answered = {**columns(response), "answers": SECRET + secrets.token_hex(8)}
    arguments = own_arguments()
    sample = RewardSample(response.aimed(*arguments).text, "", columns=answered)
    outcome, beside = await asyncio.gather(
        client.grade("hostile", sample, HOSTILE_SECONDS, 0),
        honest(client),
    )
    following = await honest(client)
    for name, other in (("beside", beside), ("next", following)):
        if (other.kind, other.score) != (OutcomeKind.SCORED, 1.0):
            return f"the grade {name}: {other}"
    if outcome.kind not in (OutcomeKind.SCORED, OutcomeKind.TIMEOUT):
        return f"its own grade: {outcome}"
    if outcome.score > 0 and response.harm is not Harm.LEAVES:
        return f"it got what it wanted: {outcome}"
    if response.harm is Harm.RUNS_ON and outcome.kind is not OutcomeKind.TIMEOUT:
        return f"it wasn't ended for its time: {outcome}"
    if victim.poll() is not None or "T" in state(victim.pid):
        return "another process was signalled"
    if found := list(left(arguments[1])):
        return f"processes {found}"
    return None


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def without_sandbox(directory: Path, names: Sequence[str]) -> dict[str, str | None]:
    command = [*as_graders_user(), sys.executable, "-m", "tests.reward.unprotected", str(directory), *names]
    done = subprocess.run(command, capture_output=True, cwd=Path(__file__).parents[2], check=True)
    found: dict[str, str | None] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def victim(graders_directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    with victim_and_secrets(graders_directory) as process:
        yield process


@pytest_asyncio.fixture
async def client(graders: Path) -> AsyncIterator[GraderClient]:
    client = await loaded(graders)
    yield client
    await client.close()


@pytest.mark.parametrize("name", SAMPLE)
async def test_no_program_does_harm(client: GraderClient, victim: subprocess.Popen[bytes], name: str) -> None:
    assert await harm(client, RESPONSES[name], victim) is None


async def test_nothing_is_left_in_the_directories(client: GraderClient, graders_directory: Path) -> None:
    for name in [name for name in SAMPLE if RESPONSES[name].harm is Harm.TRAPS]:
        await client.grade("hostile", RewardSample(RESPONSES[name].text, "", columns=HONEST_ROW), HOSTILE_SECONDS, 0)
    async with asyncio.timeout(300):
        while in_directories(graders_directory):  # noqa: ASYNC110 - nothing says so
            await asyncio.sleep(0.05)


def in_directories(directory: Path) -> list[Path]:
    try:
        return list(directory.glob("longboat-graders-*/hostile-*/*/run/*"))
    except FileNotFoundError:
        return [directory]  # something in it is being removed


@pytest.fixture(scope="module")
def unprotected(graders_directory: Path) -> dict[str, str | None]:
    return without_sandbox(graders_directory, SAMPLE)


@pytest.mark.parametrize("name", SAMPLE)
def test_every_program_does_its_harm_without_the_sandbox(name: str, unprotected: dict[str, str | None]) -> None:
    assert unprotected[name] is not None


def test_there_are_variants_enough() -> None:
    assert len(RESPONSES) >= 200
    assert len({response.group for response in RESPONSES.values()}) >= 12
    assert {RESPONSES[name].group for name in SAMPLE} == {response.group for response in RESPONSES.values()}


async def contain(socket: Path, process: subprocess.Popen[bytes], names: Sequence[str]) -> int:
    """Tries them in the sandbox, prints what happened, and returns how many did harm."""
    client, failed, nexts = await loaded(socket), 0, []
    for each in names:
        found = await harm(client, RESPONSES[each], process)
        begun = time.monotonic()
        await honest(client)
        nexts.append(time.monotonic() - begun)
        failed += found is not None
        print(f"{each:60} {found or 'contained':30} next grade after {nexts[-1]:.2f} s", flush=True)
    await client.close()
    print(f"{len(names)} variants, {failed} did harm; the next grade took {max(nexts):.2f} s at most")
    return failed


def try_all(names: Sequence[str]) -> int:
    """Tries them, prints what happened, and returns how many did harm, or did none without the sandbox."""
    with tempfile.TemporaryDirectory(prefix="lb-") as name:
        directory = Path(name)
        directory.chmod(0o777)
        with victim_and_secrets(directory) as process, running_graders(directory) as socket:
            failed = asyncio.run(contain(socket, process, names))
        for each, done in without_sandbox(directory, names).items():
            if done is None:
                failed += 1
                print(f"{each:60} does no harm without the sandbox")
    return failed


if __name__ == "__main__":
    sys.exit(try_all(sys.argv[1:] or list(RESPONSES)))
