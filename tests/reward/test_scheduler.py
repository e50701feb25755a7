"""Reward pools on a real Ray node with real graders."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import ray

from longboat_crds.job import RLJobSpec
from longboat_crds.problems import SpecProblem
from longboat_crds.reward_kinds import RewardIsolation
from longboat_crds.rewards import DEFAULT_POOL
from longboat_graders.result import RewardSample
from longboat_runtime.local.ray import start_ray
from longboat_runtime.reward.client import GraderClient
from longboat_runtime.reward.protocol import Urgency
from longboat_runtime.reward.scheduler import RayRewardScheduler
from longboat_runtime.reward.slots import resource
from longboat_runtime.reward.worker import GradeRequest
from longboat_runtime.samples import FinishReason, Grade, GradeKind, PromptId, Response, Row, SampleId, TimeLimit
from tests.reward.conftest import set_quota
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.asyncio(loop_scope="module")

# A limit, in seconds, that grades never reach if they end by themselves.
LONG = 3600.0

FUNCTIONS = """
import time
from longboat_graders.result import RewardResult

def exact(sample):
    if not sample.text:
        return RewardResult(0.0, format_ok=False)
    return float(sample.text == sample.ground_truth)

def verl(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": len(solution_str) / 10}

def act(sample):
    if sample.text == "sleep":
        time.sleep(1e6)
    if sample.text == "exec":
        exec("pass")
    if sample.text == "fail":
        raise RuntimeError("as asked")
    return 0.0 if sample.finish_reason == "repetition" else 9.0
"""
StartGraders = Callable[..., AbstractContextManager[Path]]
TEXTS = ["42", "", "sleep", "fail", "exec"]
# The domain of the rows whose grades don't end, and that of all others.
ENDLESS, ENDING = "endless", "ending"


class Texts:
    """A store that holds the same few texts for ever."""

    async def responses(self, ids: Sequence[SampleId], *, token_ids: bool = False) -> dict[SampleId, Response]:
        return {i: Response(TEXTS[i.row], FinishReason.REPETITION, 3) for i in ids if i.row < len(TEXTS)}


class AnyText:
    """A store that holds every sample."""

    async def responses(self, ids: Sequence[SampleId], *, token_ids: bool = False) -> dict[SampleId, Response]:
        return {i: Response("", FinishReason.STOP, 3) for i in ids}


def sample(row: int) -> tuple[SampleId, Row]:
    domain = ENDLESS if TEXTS[row : row + 1] == ["sleep"] else ENDING
    return SampleId(0, row, 0, 0), Row(PromptId(0, row), "6*7=", (1,), domain, "42", {"prompt": "6*7="})


def job(rewards: list[dict[str, Any]], *pools: str) -> RLJobSpec:
    return RLJobSpec.model_validate(
        {
            "runtimeRef": {"name": "any"},
            "model": {"path": "/model"},
            "dataset": {"files": {"paths": ["/rows.jsonl"]}, "columns": {"domain": "topic"}},
            "rounds": {"steps": 1, "promptsPerRound": 1},
            "rollout": {"sampling": {"maxTokens": 8}},
            "rewards": rewards,
            **({"rewardPools": [{"name": pool} for pool in pools]} if pools else {}),
        }
    )


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    start_ray({resource(pool): 2 for pool in (DEFAULT_POOL, "code", "math")}, object_store=80_000_000)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def functions(graders_directory: Path) -> Path:
    path = graders_directory / "functions.py"
    path.write_text(FUNCTIONS)
    return path


@asynccontextmanager
async def scheduler_of(graders: Path, functions: Path) -> AsyncIterator[RayRewardScheduler]:
    spec = job(
        [
            {"name": "exact", "function": f"{functions}:exact", "timeoutSeconds": LONG},
            {
                "name": "length",
                "signature": "Verl",
                "function": f"{functions}:verl",
                "weight": 0.5,
                "timeoutSeconds": LONG,
            },
            {"name": "act", "function": f"{functions}:act", "timeoutSeconds": LONG, "domains": [ENDING]},
            {"name": "hang", "function": f"{functions}:act", "timeoutSeconds": 1.0, "domains": [ENDLESS]},
        ]
    )
    scheduler = RayRewardScheduler(spec, Texts(), {DEFAULT_POOL: graders})  # type: ignore[arg-type]
    await scheduler.start()
    yield scheduler
    await scheduler.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scheduler(cluster: None, graders: Path, functions: Path) -> AsyncIterator[RayRewardScheduler]:
    async with scheduler_of(graders, functions) as scheduler:
        yield scheduler


async def test_right_wrong_form_timeout_and_error_are_told_apart(scheduler: RayRewardScheduler) -> None:
    right, wrong_form, late, failed = await asyncio.gather(*(scheduler.grade(*sample(row)) for row in range(4)))
    assert (right.kind, right.score, dict(right.parts)) == (
        GradeKind.SCORED,
        1.1,
        {"exact": 1.0, "length": 0.2, "act": 0.0},
    )
    assert (wrong_form.kind, wrong_form.score) == (GradeKind.WRONG_FORMAT, 0.0)
    assert (late.kind, late.message) == (GradeKind.TIMEOUT, "hang: killed after 1 s")
    assert failed.kind is GradeKind.GRADER_ERROR
    assert "RuntimeError: as asked" in failed.message


async def test_a_learned_limit_travels_with_its_request_and_an_audit_has_the_hard_one(
    scheduler: RayRewardScheduler,
) -> None:
    limits = {"limited": TimeLimit(0.3), "audited": TimeLimit(0.3, audit=True), "unknown": TimeLimit()}
    grades = await asyncio.gather(*(scheduler.grade(*sample(2), limits={"hang": limit}) for limit in limits.values()))
    for grade, (name, limit) in zip(grades, limits.items(), strict=True):
        assert grade.kind is GradeKind.TIMEOUT
        (time,) = grade.times.values()
        assert (time.killed, time.limit, time.audit) == (name == "limited", limit.seconds, limit.audit)
        assert time.seconds > 0.0
        assert ("the limit that was learned" in grade.message) == (name == "limited")
    (right,) = (await scheduler.grade(*sample(0), limits={"exact": TimeLimit(LONG / 2)})).times.items()
    assert right[0] == "exact"
    assert not right[1].killed
    assert (await scheduler.grade(*sample(0))).times == {}


async def test_once_nothing_more_is_generated_no_answer_waits_for_others(
    cluster: None, graders: Path, functions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second sample takes long, so that the first call, which is under way, brings the first one's answer alone."""
    monkeypatch.setattr("longboat_runtime.reward.pool.GATHER_SECONDS", 1e9)
    async with scheduler_of(graders, functions) as scheduler:
        grading = asyncio.gather(*(scheduler.grade(*sample(row)) for row in (0, 2)))
        (worker,) = scheduler._pools[DEFAULT_POOL]._workers.values()
        await eventually_async(lambda: worker.called, right=math.isfinite)
        scheduler.flush()
        assert [grade.kind for grade in await grading] == [GradeKind.SCORED, GradeKind.TIMEOUT]


async def test_a_sample_that_the_store_has_lost_is_told_from_those_that_it_has(scheduler: RayRewardScheduler) -> None:
    right, lost, again = await asyncio.gather(
        *(scheduler.grade(*sample(row)) for row in (0, len(TEXTS), 0)), return_exceptions=True
    )
    assert isinstance(lost, KeyError)
    assert [grade.score for grade in (right, again) if isinstance(grade, Grade)] == [1.1, 1.1]


async def test_a_reward_that_runs_code_of_its_own_is_known_to_need_a_process_for_each_grade(
    scheduler: RayRewardScheduler,
) -> None:
    for text in ("42", "exec"):
        assert (await scheduler.grade(*sample(TEXTS.index(text)))).kind is GradeKind.SCORED
    in_force = {name: one.isolation for name, one in scheduler.isolation.items()}
    assert in_force == {
        "exact": RewardIsolation.AUTO,
        "length": RewardIsolation.AUTO,
        "act": RewardIsolation.PER_GRADE,
        "hang": RewardIsolation.AUTO,
    }
    assert "functions.py line" in scheduler.isolation["act"].reason


async def test_a_worker_that_dies_costs_nothing(scheduler: RayRewardScheduler) -> None:
    grading = asyncio.gather(*(scheduler.grade(*sample(0)) for _ in range(20)))
    (worker,) = scheduler._pools[DEFAULT_POOL]._workers.values()
    await eventually_async(lambda: worker.requests)
    ray.kill(worker.actor)
    assert [grade.score for grade in await grading] == [1.1] * 20


async def test_graders_that_restart_are_found_again(
    cluster: None,
    functions: Path,
    start_graders: StartGraders,
    graders_directory: Path,
) -> None:
    directory = graders_directory / "restarting"
    directory.mkdir()
    spec = job([{"name": "exact", "function": f"{functions}:exact"}])
    scheduler = RayRewardScheduler(spec, Texts(), {DEFAULT_POOL: directory / "graders.sock"})  # type: ignore[arg-type]
    assert scheduler.unserved == (DEFAULT_POOL,)
    with start_graders(directory):
        await scheduler.start()
        assert not scheduler.unserved
        assert (await scheduler.grade(*sample(0))).score == 1.0
    with start_graders(directory):
        assert (await scheduler.grade(*sample(0))).score == 1.0
    await scheduler.close()
    assert scheduler.unserved == (DEFAULT_POOL,)


async def test_a_grade_that_never_ends_holds_up_no_other(
    cluster: None,
    functions: Path,
    start_graders: StartGraders,
    graders_directory: Path,
) -> None:
    directory = graders_directory / "own"
    directory.mkdir()
    spec = job([{"name": "act", "function": f"{functions}:act", "timeoutSeconds": LONG}])
    with start_graders(directory) as socket:
        scheduler = RayRewardScheduler(spec, Texts(), {DEFAULT_POOL: socket})  # type: ignore[arg-type]
        await scheduler.start()
        endless, score = sample(TEXTS.index("sleep")), sample(0)
        waiting = asyncio.gather(scheduler.grade(*endless), return_exceptions=True)
        assert [(await grade).score for grade in [asyncio.create_task(scheduler.grade(*score)) for _ in range(20)]] == [
            0.0
        ] * 20
        assert not waiting.done()
        await scheduler.close()
        waiting.cancel()


async def test_a_function_that_is_not_there_fails_the_start(cluster: None, graders: Path, functions: Path) -> None:
    spec = job([{"name": "ok", "function": f"{functions}:exact"}, {"name": "typo", "function": f"{functions}:exactly"}])
    scheduler = RayRewardScheduler(spec, Texts(), {DEFAULT_POOL: graders})  # type: ignore[arg-type]
    with pytest.raises(SpecProblem, match="Did you mean 'exact'") as caught:
        await scheduler.start()
    assert caught.value.field == "spec.rewards[1].function"


# --- Several pools, order, cancellation ---------------------------------------------------------------------------

# A grade of a row whose ground truth is a path takes until a file is there.
WAITS = """
import os, time

def wait(sample):
    while sample.ground_truth and not os.path.exists(sample.ground_truth):
        time.sleep(0.01)
    return 1.0

def other(sample):
    return wait(sample)
"""


def waiting_row(row: int, until: Path | None, domain: str = "", *, index: int = 0) -> tuple[SampleId, Row]:
    truth = None if until is None else str(until)
    return SampleId(0, row, 0, index), Row(PromptId(0, row), "?", (1,), domain, truth, {"prompt": "?"})


@asynccontextmanager
async def pools_of(
    directory: Path,
    start_graders: StartGraders,
    *names: str,
    processes: int = 1,
    cgroup: Path | None = None,
    **domains: str,
) -> AsyncIterator[tuple[RayRewardScheduler, dict[str, Path]]]:
    """A scheduler of these pools, each with graders of its own, and their sockets; a reward of each pool's name, for a domain if given."""
    directory.mkdir()  # noqa: ASYNC240 - no other task waits
    (directory / "waits.py").write_text(WAITS)
    rewards = [
        {
            "name": name,
            "pool": name,
            "function": f"{directory}/waits.py:{'wait' if number == 0 else 'other'}",
            "timeoutSeconds": LONG,
            "domains": [domains[name]] if name in domains else [],
        }
        for number, name in enumerate(names)
    ]
    spec = job(rewards, *names)
    with ExitStack() as stack:
        sockets = {}
        for name in names:
            (directory / name).mkdir()
            sockets[name] = stack.enter_context(start_graders(directory / name, processes, cgroup))
        scheduler = RayRewardScheduler(spec, AnyText(), sockets)  # type: ignore[arg-type]
        await scheduler.start()
        yield scheduler, sockets
        await scheduler.close()


async def running_in(socket: Path, count: int) -> None:
    """Waits until so many grades run there."""
    client = GraderClient(socket)
    await eventually_async(client.state, right=lambda state: state["running"] == count)
    await client.close()


async def test_a_sample_is_graded_by_all_pools_at_once_and_each_loads_its_own_functions_alone(
    cluster: None, start_graders: StartGraders, graders_directory: Path
) -> None:
    go = graders_directory / "go"
    async with pools_of(graders_directory / "both", start_graders, "code", "math") as (scheduler, sockets):
        grading = asyncio.create_task(scheduler.grade(*waiting_row(0, go)))
        for socket in sockets.values():
            await running_in(socket, 1)
        go.touch()
        grade = await grading
        assert (grade.kind, grade.score, dict(grade.parts)) == (GradeKind.SCORED, 2.0, {"code": 1.0, "math": 1.0})
        for name, socket in sockets.items():
            client = GraderClient(socket)
            assert set((await client.state())["rewards"]) == {name}
            await client.close()


async def test_a_pool_without_graders_holds_up_its_own_rewards_alone(
    cluster: None, start_graders: StartGraders, graders_directory: Path
) -> None:
    directory = graders_directory / "gone"
    async with pools_of(directory, start_graders, "code", "math", code="c", math="m") as (scheduler, _):
        (worker,) = scheduler._pools["code"]._workers.values()
        scheduler._watching.cancel()
        ray.kill(worker.actor)
        waiting = asyncio.create_task(scheduler.grade(*waiting_row(0, None, "c")))
        await eventually_async(lambda: scheduler.unserved, right=lambda unserved: unserved == ("code",))
        assert (await scheduler.grade(*waiting_row(1, None, "m"))).score == 1.0
        assert not waiting.done()
        scheduler._watching = asyncio.create_task(scheduler._watch())
        assert (await waiting).score == 1.0
        assert not scheduler.unserved


async def test_grades_that_decide_something_sooner_are_asked_for_first(
    cluster: None, start_graders: StartGraders, graders_directory: Path
) -> None:
    """One process; all places ahead of it are taken while the others are asked for, in the opposite order."""
    go = graders_directory / "go-on"
    async with pools_of(graders_directory / "order", start_graders, "code") as (scheduler, _):
        (worker,) = scheduler._pools["code"]._workers.values()
        first = [asyncio.create_task(scheduler.grade(*waiting_row(9, go, index=i))) for i in range(worker.slots)]
        await eventually_async(lambda: worker.running, right=lambda running: running == worker.slots)
        ended: list[str] = []

        async def grade(name: str, row: int, urgency: Urgency) -> None:
            await scheduler.grade(*waiting_row(row, None), urgency)
            ended.append(name)

        asked = {
            "newer round": (1, Urgency(round=8, missing=1)),
            "lacks three": (2, Urgency(round=7, missing=3)),
            "lacks two": (3, Urgency(round=7, missing=2)),
            "evaluation": (4, Urgency()),
        }
        others = [asyncio.create_task(grade(name, *of)) for name, of in asked.items()]
        await asyncio.sleep(0)
        go.touch()
        await asyncio.gather(*first, *others)
        assert ended == [*reversed(asked)]


@pytest.mark.extended
async def test_a_pool_gives_its_workers_as_much_as_their_quota_lets_them_grade(
    cluster: None, start_graders: StartGraders, graders_directory: Path
) -> None:
    """The quota rises while grades run, and before any of them has an answer; what can't run yet waits in the pool."""
    go, cgroup = graders_directory / "go-within", graders_directory / "quota"
    cgroup.mkdir()
    set_quota(cgroup, "50000 100000")
    directory = graders_directory / "within"
    async with pools_of(directory, start_graders, "code", processes=4, cgroup=cgroup) as (scheduler, sockets):
        (worker,) = scheduler._pools["code"]._workers.values()
        assert worker.at_once == 1
        few = worker.slots
        grading = [asyncio.create_task(scheduler.grade(*waiting_row(i, go))) for i in range(100)]
        await running_in(sockets["code"], 1)
        await eventually_async(lambda: worker.running, right=lambda running: running == few)
        load = scheduler.loads["code"]
        assert (load.asked, load.at_once, load.waiting, load.arrived, load.graded) == (100, 1, 99, 100, 0)
        assert load.queue_seconds > 0
        set_quota(cgroup, "300000 100000")
        await running_in(sockets["code"], 3)
        await eventually_async(lambda: worker.running, right=lambda running: running >= 3 * few)
        assert scheduler.loads["code"].at_once == 3
        go.touch()
        assert {grade.score for grade in await asyncio.gather(*grading)} == {1.0}
        load = scheduler.loads["code"]
        assert (load.asked, load.queue_seconds, load.graded) == (0, 0.0, 100)
        assert load.cpu_seconds > 0


@pytest.mark.parametrize(
    "count", [pytest.param(1, marks=pytest.mark.extended, id="running"), pytest.param(100, id="running and waiting")]
)
async def test_a_grade_that_is_given_up_makes_room_for_the_next(
    cluster: None, start_graders: StartGraders, graders_directory: Path, count: int
) -> None:
    """It would have run for ever: in a process, in the graders' queue, on its way there or in the pool's queue."""
    never = graders_directory / "never"
    async with pools_of(graders_directory / f"given-up-{count}", start_graders, "code") as (scheduler, sockets):
        asked = [asyncio.create_task(scheduler.grade(*waiting_row(i, never))) for i in range(count)]
        await running_in(sockets["code"], 1)
        for grading in asked:
            grading.cancel()
        assert (await scheduler.grade(*waiting_row(count, None))).score == 1.0
        assert all(grading.cancelled() for grading in asked)
        await running_in(sockets["code"], 0)


async def test_a_grade_whose_cancellation_overtakes_it_never_runs(
    cluster: None, start_graders: StartGraders, graders_directory: Path
) -> None:
    """The graders' one process would be taken for ever. The worker is asked as the pool does, whose calls may overtake each other."""
    never = graders_directory / "never-at-all"
    async with pools_of(graders_directory / "overtaken", start_graders, "code") as (scheduler, sockets):
        (worker,) = scheduler._pools["code"]._workers.values()
        identity, row = waiting_row(0, never)
        graded = RewardSample("", row.columns["prompt"], ground_truth=row.ground_truth)
        late = [GradeRequest(number, (identity,), graded, (("code", LONG),)) for number in (10**6, 10**6 + 1)]
        await worker.actor.cancel.remote([request.number for request in late])
        await worker.actor.submit.remote(late)
        assert (await scheduler.grade(*waiting_row(1, None))).score == 1.0
        await running_in(sockets["code"], 0)
        # What isn't cancelled beforehand does take it, until it is cancelled.
        await worker.actor.submit.remote(late[:1])
        await running_in(sockets["code"], 1)
        await worker.actor.cancel.remote([late[0].number])
        await running_in(sockets["code"], 0)


@pytest.mark.extended
async def test_a_worker_that_is_lost_ends_what_it_had_asked_for(
    cluster: None, start_graders: StartGraders, graders_directory: Path
) -> None:
    """The graders' one process is free for the same sample, which another worker asks for again."""
    go = graders_directory / "once-more"
    async with pools_of(graders_directory / "lost", start_graders, "code") as (scheduler, sockets):
        grading = asyncio.create_task(scheduler.grade(*waiting_row(0, go)))
        await running_in(sockets["code"], 1)
        (worker,) = scheduler._pools["code"]._workers.values()
        ray.kill(worker.actor)
        await running_in(sockets["code"], 0)
        await running_in(sockets["code"], 1)
        go.touch()
        assert (await grading).score == 1.0
