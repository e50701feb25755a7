"""Responses that multiply, hostile functions and hostile programs, graded without Kubernetes, as root and as an ordinary user.

Graders run in a control group of 4,000 processes. Some twenty minutes, as root, alone on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.record import Recorder
from longboat_crds.rewards import RewardSpec
from longboat_graders.messages import FunctionOutcome, OutcomeKind
from longboat_graders.result import RewardSample
from longboat_runtime.reward.client import GraderClient
from tests.reward.conftest import LONG
from tests.reward.hostile_programs import PROBE, PROGRAMS, SEED, TRUSTING
from tests.reward.hostile_responses import LIMITS, Harm, Way, columns
from tests.reward.hostile_responses import RESPONSES as PROGRAMS_OF_RESPONSES
from tests.reward.local_site import CASES, MULTIPLYING, USER, control_group, processes, start
from tests.reward.unprotected import own_arguments

USERS = {"root": 0, "an ordinary user": USER}
# The limit of everything that never ends by itself, in seconds.
LIMIT_SECONDS = 3.0
# What is graded after each, and what it is worth.
HONEST = {"function": (PROBE, 0.25), "program": ("print(int(input()) ** 2)", 1.0)}

Case = tuple[str, str, str, RewardSample, float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `make bench NAME=local_graders`."""
    parser.add_argument("--users", nargs="*", default=[*USERS], choices=[*USERS])
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every Nth response of a kind")


def run(arguments: argparse.Namespace, path: Path) -> None:
    """Has everything graded for each user in turn. Appends to `path`."""
    recorder = Recorder(path, users=arguments.users, limit=LIMIT_SECONDS)
    for user in arguments.users:
        with tempfile.TemporaryDirectory(prefix="lb-") as name, control_group() as group:
            directory = Path(name)
            directory.chmod(0o755)
            program = start(group, directory, user=USERS[user])
            try:
                asyncio.run(_grade_all(recorder, user, directory, arguments.every))
            finally:
                program.terminate()
                program.wait()
                remaining = len(processes(group))
            recorder.write("end", user=user, left=remaining)
    recorder.close()


def cases(every: int) -> Iterator[Case]:
    """Yields kind, name, reward, sample and limit in seconds of every response."""
    for reward in HONEST:
        for name, text in MULTIPLYING.items():
            yield f"multiplying {reward}s", name, reward, _sample(text), LIMIT_SECONDS
    for name, program in [*PROGRAMS.items()][::every]:
        yield "hostile functions", name, "function", _sample(program.text), LIMIT_SECONDS if program.hangs else LONG
    able = [(name, each) for name, each in PROGRAMS_OF_RESPONSES.items() if each.way is not Way.COMMAND]
    for name, response in able[::every]:
        text = response.aimed(*own_arguments(), watched=1.0).text
        limit = LIMIT_SECONDS if response.harm is Harm.RUNS_ON else LONG
        yield "hostile programs", name, "program", RewardSample(text, "", columns=columns(response)), limit


async def _grade_all(recorder: Recorder, user: str, directory: Path, every: int) -> None:
    (directory / "trusting.py").write_text(TRUSTING)
    client = GraderClient(directory / "graders.sock")
    function = {"name": "function", "function": f"{directory}/trusting.py:run", "isolation": "PerGrade"}
    for reward in (function, {"name": "program", "kind": "Sandbox", "sandbox": LIMITS}):
        problem = await client.load(RewardSpec.model_validate(reward), "spec.rewards[0]")
        assert problem is None, problem
    for kind, name, graded_by, sample, limit in cases(every):
        began = time.monotonic()
        outcome = await client.grade(graded_by, sample, limit, SEED)
        ended = time.monotonic()
        text, worth = HONEST[graded_by]
        following = await client.grade(graded_by, _sample(text), LONG, SEED)
        right = (following.kind, following.score) == (OutcomeKind.SCORED, worth)
        beyond = max(ended - began - (limit if limit < LONG else 0.0), 0.0)
        recorder.write(
            "graded",
            user=user,
            group=kind,
            name=name,
            outcome=str(outcome.kind),
            beyond_seconds=beyond,
            next_right=right,
            next_seconds=time.monotonic() - ended,
        )
        print(
            f"{user}, {kind}: {name[:60]:60} {_described(outcome):40} {beyond:.2f} s, next {'right' if right else 'WRONG'}",
            flush=True,
        )
    await client.close()


def _sample(text: str) -> RewardSample:
    return RewardSample(text, "prompt", "truth", columns=CASES)


def _described(outcome: FunctionOutcome) -> str:
    return f"{outcome.kind}: {outcome.message}"[:40]
