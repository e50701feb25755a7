"""A program that crashes while its container is short of memory needn't be the cause: it is graded again with nothing beside it."""

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.rewards import RewardSpec
from longboat_graders import case_runner
from longboat_graders.messages import FunctionOutcome, OutcomeKind, RewardFunction
from longboat_graders.process_tree import oom_kills, was_short
from longboat_graders.program import Ended
from longboat_graders.result import RewardSample
from longboat_graders.server import GraderServer, blamed
from longboat_graders.verdict import CaseResult
from longboat_runtime.reward.attempts import Attempts

# As in the kernel's documentation of cgroup v2.
EVENTS = "low 0\nhigh 0\nmax 12\noom 4\noom_kill {}\noom_group_kill 0\n"
ROW = {"input_output": '{"inputs": ["3"], "outputs": ["9"]}'}
KILLED = Ended(limit=None, status=-9, seconds=0.1, cpu_seconds=0.1, own_seconds=0.1)
LIMITED = Ended(limit=CaseResult.MEMORY, status=-9, seconds=0.1, cpu_seconds=0.1, own_seconds=0.1)
LOST = FunctionOutcome(OutcomeKind.LOST, message="short of memory")


class Ends:
    """A launcher whose programs end as it is told."""

    def __init__(self, directory: Path, ended: Ended) -> None:
        (directory / "run").mkdir()
        self.directory, self._ended = str(directory), ended

    def moved(self, number: int) -> None: ...

    def start(self, run: Any, files: Mapping[str, int]) -> None: ...

    def ended(self) -> Ended:
        return self._ended


def outcome_of(directory: Path, ended: Ended) -> Mapping[str, Any]:
    """What a case runner says of a program that ends so."""
    reward = RewardSpec.model_validate({"name": "code", "kind": "Sandbox", "sandbox": {}})
    found = case_runner.CaseRunner(RewardFunction.from_spec(reward), "spec.rewards[0]", ["/nowhere"])
    found._launcher = Ends(directory, ended)  # type: ignore[assignment]
    return found.outcome(RewardSample("print(9)", "", columns=ROW), 10.0, 0, {})


@pytest.mark.parametrize(
    ("ended", "kills", "kind"),
    [
        (KILLED, [7, 8], OutcomeKind.LOST),
        # It may as well have done so itself.
        (KILLED, [7, 7], OutcomeKind.SCORED),
        (KILLED, [None, None], OutcomeKind.SCORED),
        # It has gone beyond its own limit, whatever else happened.
        (LIMITED, [7, 8], OutcomeKind.SCORED),
    ],
)
def test_a_crash_is_no_failure_while_the_kernel_ends_processes_for_want_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: Ended, kills: list[int | None], kind: OutcomeKind
) -> None:
    counts: Iterator[int | None] = itertools.chain(kills, itertools.repeat(kills[-1]))
    monkeypatch.setattr(case_runner, "oom_kills", lambda: next(counts))
    said = outcome_of(tmp_path, ended)
    assert (said["kind"], said["score"]) == (kind, 0.0), said


def test_the_count_is_read_where_the_kernel_keeps_it(tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    assert oom_kills(str(events)) is None
    events.write_text("low 0\n")
    assert oom_kills(str(events)) is None
    events.write_text(EVENTS.format(3))
    assert oom_kills(str(events)) == 3


counts = st.none() | st.integers(0, 9)


@given(counts, counts)
def test_what_is_not_known_blames_nobody_else(before: int | None, after: int | None) -> None:
    assert was_short(before, after) == (None not in (before, after) and after > before)  # type: ignore[operator]


class Loaded:
    """A function whose grades are done when the test says so."""

    has_cases = True

    def __init__(self) -> None:
        self.outcomes: list[asyncio.Future[FunctionOutcome]] = []

    def longest_seconds(self, seconds: float) -> float:
        return seconds

    def grade(self, grading: Any) -> None:
        self.outcomes.append(grading.outcome)


async def test_only_a_program_with_nothing_beside_it_is_the_cause(tmp_path: Path) -> None:
    server, loaded, said = GraderServer(2, tmp_path, cgroup=None), Loaded(), {}
    server._loaded["code"] = loaded  # type: ignore[assignment]
    channel = server._connected()
    channel.send = lambda message, body=b"": said.update({message.get("id"): message.get("outcome")})  # type: ignore[method-assign]

    def ask(number: int) -> None:
        server.grade({"id": number, "reward": "code", "timeout": 1.0, "seed": 0}, b"", channel)

    async def lose(outcome: asyncio.Future[FunctionOutcome]) -> None:
        told = asyncio.Event()
        outcome.add_done_callback(lambda _: told.set())  # after the server's callback
        outcome.set_result(LOST)
        await told.wait()

    ask(1)
    ask(2)
    for outcome in list(loaded.outcomes):
        await lose(outcome)
    # Both: the other one ran beside each of them, also beside the one that ended last.
    assert [FunctionOutcome.from_json(said[number]).kind for number in (1, 2)] == [OutcomeKind.LOST] * 2
    ask(3)
    await lose(loaded.outcomes[2])
    alone = FunctionOutcome.from_json(said[3])
    assert (alone.kind, alone.score) == (OutcomeKind.SCORED, 0.0)
    assert alone.message == "short of memory, with nothing graded beside it"


def test_what_graders_say_is_lost_is_graded_again_alone_at_no_cost() -> None:
    attempts = Attempts()
    assert not attempts.count({"code": FunctionOutcome.from_json(LOST.to_json())})
    assert attempts.alone
    assert attempts.failed == 0
    assert blamed(FunctionOutcome(OutcomeKind.SCORED, 1.0), alone=True).score == 1.0
