"""What hostile responses do in the sandbox, each beside an honest one, and how soon the next one is graded after it."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from longboat_crds.rewards import RewardSpec
from longboat_graders.messages import FunctionOutcome, OutcomeKind
from longboat_graders.result import RewardSample
from longboat_runtime.reward.client import GraderClient
from tests.reward.conftest import LONG, as_graders_user, graded, process_state
from tests.reward.hostile_neighbours import SECRET
from tests.reward.hostile_responses import LIMITS, Harm, Response, Way, columns
from tests.reward.unprotected import left, own_arguments

# Of one pod: for programs that are run by a command, and for all others.
PYTHON, COMMAND = (
    RewardSpec.model_validate({"name": name, "kind": "Sandbox", "sandbox": LIMITS | settings})
    for name, settings in (
        ("hostile", {}),
        ("hostile-command", {"fileName": "main.py", "runCommand": ["env", sys.executable, "{file}"]}),
    )
)
# The limit of a case, in seconds, for programs that go on for ever.
ENDLESS_SECONDS = 1.0
_HONEST = """
import subprocess, sys, threading
number = int(input())
found = []
thread = threading.Thread(target=lambda: found.append(number ** 2)); thread.start(); thread.join()
open('file', 'w').write(str(found[0]))
child = subprocess.run(['cat', 'file'], capture_output=True, text=True)
print(child.stdout)
"""
HONEST_ROW = {"input_output": json.dumps({"inputs": ["3", "5", "12"], "outputs": ["9", "25", "144"]})}


@dataclass(frozen=True, slots=True)
class Tried:
    """What harm a response did, None if none, and the seconds from its grade's end to the grade of the next sample."""

    harm: str | None
    next_seconds: float


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
    """A client of graders, which have both rewards."""
    client = GraderClient(socket)
    for index, reward in enumerate((PYTHON, COMMAND)):
        problem = await client.load(reward, f"spec.rewards[{index}]")
        assert problem is None, problem
    return client


async def tried(
    client: GraderClient, response: Response, victim: subprocess.Popen[bytes], clock: Callable[[], float]
) -> Tried:
    """Grades a response beside an honest sample, and another honest one as soon as the response has its grade."""
    reward = (COMMAND if response.way is Way.COMMAND else PYTHON).name
    arguments = own_arguments()
    answered = {**columns(response), "answers": SECRET + secrets.token_hex(8)}
    sample = RewardSample(response.aimed(*arguments, watched=1e6).text, "", columns=answered)
    seconds = ENDLESS_SECONDS if response.harm is Harm.RUNS_ON else LONG
    beside = asyncio.create_task(_honest(client, reward))
    outcome = await graded(client, reward, sample, seconds)
    ended = clock()
    following = await _honest(client, reward)
    next_seconds = clock() - ended
    harm = _harm(response, outcome, {"beside": await beside, "next": following}, victim, arguments[1])
    return Tried(harm, next_seconds)


async def _honest(client: GraderClient, reward: str) -> FunctionOutcome:
    return await client.grade(reward, RewardSample(_HONEST, "", columns=HONEST_ROW), LONG, 0)


def _harm(
    response: Response,
    outcome: FunctionOutcome,
    others: dict[str, FunctionOutcome],
    victim: subprocess.Popen[bytes],
    left_argument: str,
) -> str | None:
    """To its own grade, to the others', or to the machine."""
    for name, other in others.items():
        if (other.kind, other.score) != (OutcomeKind.SCORED, 1.0):
            return f"the grade {name}: {other}"
    if outcome.kind not in (OutcomeKind.SCORED, OutcomeKind.TIMEOUT):
        return f"its own grade: {outcome}"
    if outcome.score > 0 and response.harm is not Harm.LEAVES:
        return f"it got what it wanted: {outcome}"
    if (response.harm is Harm.RUNS_ON) != (outcome.kind is OutcomeKind.TIMEOUT):
        return f"it ended for another reason: {outcome}"
    if victim.poll() is not None or process_state(victim.pid) == "T":
        return "another process was signalled"
    if found := list(left(left_argument)):
        return f"processes {found}"
    return None


def without_sandbox(directory: Path, names: Sequence[str]) -> dict[str, str | None]:
    """What harm each response does without the sandbox, None if none."""
    command = [*as_graders_user(), sys.executable, "-m", "tests.reward.unprotected", str(directory), *names]
    done = subprocess.run(command, capture_output=True, cwd=Path(__file__).parents[2], check=True)
    found: dict[str, str | None] = json.loads(done.stdout)
    return found
