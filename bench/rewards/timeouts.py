"""Learned timeouts against the hard limit, on `bench.rewards.mix`.

Real graders grade responses that compute, sleep and hang, each in a process of theirs, while other processes come and go that want the CPUs
too. Both arms grade the same responses of a round, one arm after the other, in an order that alternates. All times of the mix are divided by
`--scale`. Beside it, runs of 20,000 grades are simulated, of which it is known what limits would have killed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.record import Recorder
from bench.rewards.mix import HARD_LIMIT, Contention, Fate, Mix, Response
from bench.rewards.simulated import SimulatedGrading
from longboat_crds.rewards import RewardSpec
from longboat_graders.result import RewardSample
from longboat_runtime.metrics.timeouts import interval
from longboat_runtime.reward.client import GraderClient
from longboat_runtime.reward.combine import combine, grade_times, own_seconds
from longboat_runtime.reward.timeouts import LearnedTimeouts
from longboat_runtime.rounds import events
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.samples import GradeKind, SampleId, TimeLimit
from tests.support.log import logged

GROUP = 8
ARMS = ("hard", "learned")
# What the reward function does is in the row: a response of the mix.
FUNCTION = """
import time

def grade(sample):
    computing, asleep, score = (sample.columns[name] for name in ("computing", "asleep", "score"))
    end = time.process_time() + (computing if computing is not None else float("inf"))
    while time.process_time() < end:
        pass
    time.sleep(asleep if asleep is not None else 1e6)
    return score
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this part."""
    processes = len(os.sched_getaffinity(0))
    parser.add_argument("--mixes", type=int, default=4, help="timeouts: sets of problems, one after the other")
    parser.add_argument("--rounds", type=int, default=25, help="timeouts: rounds of each set that both arms grade")
    parser.add_argument("--prompts", type=int, default=6, help="timeouts: prompts of a round, with 8 responses each")
    parser.add_argument("--problems", type=int, default=30, help="timeouts: problems of a set")
    parser.add_argument("--scale", type=float, default=6.0, help="timeouts: times of the mix are divided by it")
    parser.add_argument("--seed", type=int, default=0, help="timeouts: of the first set")
    parser.add_argument("--processes", type=int, default=processes, help="timeouts: grades that run at once")
    parser.add_argument("--simulated", type=int, default=100, help="timeouts: runs that are simulated")


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Simulates runs, then runs both arms on real graders unless `arguments.rounds` is 0. Records the results."""
    for seed in range(arguments.simulated):
        recorder.write("simulated", seed=seed, **_simulated(seed))
    if arguments.rounds:
        asyncio.run(_graded(arguments, recorder))


def _simulated(seed: int) -> dict[str, Any]:
    simulated = SimulatedGrading(seed).run()
    tally, counts = simulated.timeouts.rewards["tests"].total, simulated.counts
    low, high = interval(tally.wrong, tally.audits)
    return {
        "grades": simulated.grades,
        "cpu": {"hard": simulated.hard.cpu, "learned": simulated.learned.cpu},
        "occupied": {"hard": simulated.hard.occupied, "learned": simulated.learned.occupied},
        "wrong_kill_rate": counts[""].wrong_kill_rate,
        "wrong_kills_of_correct": counts[""].of_correct,
        "slowest": counts["slowest"].wrong_kill_rate,
        "slowest_of_correct": counts["slowest"].of_correct,
        "low": low,
        "high": high,
        "audits": tally.audits,
    }


async def _graded(arguments: argparse.Namespace, recorder: Recorder) -> None:
    with tempfile.TemporaryDirectory(prefix="longboat-") as directory:
        function, socket = Path(directory) / "function.py", Path(directory) / "graders.sock"
        function.write_text(FUNCTION)
        reward = RewardSpec.model_validate(
            {
                "name": "tests",
                "function": f"{function}:grade",
                "timeoutSeconds": HARD_LIMIT / arguments.scale,
                "learnedTimeout": {"minSeconds": 2.0 / arguments.scale},
            }
        )
        command = [sys.executable, "-m", "longboat_runtime.cli", "graders", "--socket", str(socket)]
        command += ["--processes", str(arguments.processes), "--parent", str(os.getpid())]
        server = subprocess.Popen(command)  # noqa: ASYNC220 - returns at once
        client = GraderClient(socket)
        try:
            problem = await client.load(reward, "spec.rewards[0]")
            if problem is not None:
                raise problem
            for seed in range(arguments.seed, arguments.seed + arguments.mixes):
                await _mix(seed, reward, client, arguments, recorder)
        finally:
            await client.close()
            server.terminate()
            server.wait()


async def _mix(
    seed: int, reward: RewardSpec, client: GraderClient, arguments: argparse.Namespace, recorder: Recorder
) -> None:
    """Runs and records all rounds of one set of problems, of which nothing is known at first."""
    contention = Contention(seed, 3600.0)
    arms = _Arms(Mix(seed, arguments.problems), reward, client, arguments.scale)
    for number in range(1, arguments.rounds + 1):
        # A round of the mix takes half as long as contention stays what it is.
        level = contention.at(number * Contention.STAYS / 2)
        with _others(round((level - 1) * arguments.processes)):
            for line in await arms.round(number, arguments.prompts):
                recorder.write("round", seed=seed, round=number, contention=level, **line)
                print(seed, number, level, line, flush=True)


@contextmanager
def _others(count: int) -> Iterator[None]:
    """Runs, during the block, so many processes that want a CPU all the time."""
    endless = [sys.executable, "-S", "-c", "while True: pass"]
    processes = [subprocess.Popen(endless) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


class _Arms:
    """Both arms, and what the learning one has learned."""

    def __init__(self, mix: Mix, reward: RewardSpec, client: GraderClient, scale: float) -> None:
        self._mix, self._reward, self._client, self._scale = mix, reward, client, scale
        self._timeouts = LearnedTimeouts([reward], lambda row: mix.problems[row].domain.name)

    async def round(self, number: int, prompts: int) -> list[dict[str, Any]]:
        """Runs the round in each arm; returns what each took for it."""
        rows = [(number * prompts + place) % len(self._mix.problems) for place in range(prompts)]
        samples = [SampleId(number, row, 0, index) for row in rows for index in range(GROUP)]
        responses = self._mix.responses([sample.row for sample in samples], number)
        self._timeouts.fold(logged(events.RoundOpened(number, RoundKind.SHORT, number - 1)))
        lines = [
            await self._arm(arm, number, samples, responses) for arm in (ARMS if number % 2 else tuple(reversed(ARMS)))
        ]
        self._timeouts.fold(logged(events.StepCommitted(number, number, number, tuple(samples))))
        return lines

    async def _arm(
        self, arm: str, number: int, samples: Sequence[SampleId], responses: Sequence[Response]
    ) -> dict[str, Any]:
        began = time.monotonic()
        grading = [self._grade(arm, number, *each) for each in zip(samples, responses, strict=True)]
        graded = await asyncio.gather(*grading)
        taken = time.monotonic() - began
        if arm == "learned":
            for event in graded:
                self._timeouts.fold(logged(event))
        tally = self._timeouts.rewards[self._reward.name].total
        times = [event.times[self._reward.name] for event in graded]
        fates = [response.fate for response in responses]
        killed = Counter(fate for fate, event in zip(fates, graded, strict=True) if event.kind is GradeKind.TIMEOUT)
        by_limit = Counter(fate for fate, time in zip(fates, times, strict=True) if time.killed)
        return {
            "arm": arm,
            "grades": len(graded),
            "seconds": taken,
            "cpu": sum(time.cpu_seconds for time in times),
            "occupied": sum(event.seconds for event in graded),
            "killed": {fate.value: killed[fate] for fate in Fate},
            "by_limit": {fate.value: by_limit[fate] for fate in Fate},
            "correct": fates.count(Fate.CORRECT),
            "audits": tally.audits,
            "wrong_audits": tally.wrong,
            "limits": [time.limit for time in times if time.limit is not None] if arm == "learned" else [],
        }

    async def _grade(self, arm: str, number: int, sample: SampleId, response: Response) -> events.Graded:
        reward, name = self._reward, self._reward.name
        limits = self._timeouts.limits(sample, number) if arm == "learned" else {name: TimeLimit()}
        hangs = response.fate in (Fate.ASLEEP, Fate.BUSY)
        columns = {
            "computing": None if response.fate is Fate.BUSY else response.cpu_seconds / self._scale,
            "asleep": None if hangs else (response.seconds - response.cpu_seconds) / self._scale,
            "score": float(response.fate is Fate.CORRECT),
        }
        row_sample = RewardSample("", "", columns=columns)
        own = own_seconds([reward], limits)[name]
        outcomes = {name: await self._client.grade(name, row_sample, reward.timeout_seconds, 0, own)}
        grade = combine([reward], outcomes)
        times = grade_times(outcomes, limits)
        return events.Graded(sample, grade.kind, grade.score, grade.seconds, grade.message, dict(grade.parts), times)
