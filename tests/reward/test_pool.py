"""The reward pool on a real Ray node with real graders."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import ray

from longboat_crds.job import RLJobSpec
from longboat_crds.reward_kinds import RewardIsolation
from longboat_runtime.agent.ray_node import bare_nodes
from longboat_runtime.problems import SpecProblem
from longboat_runtime.reward.pool import RayRewardPool
from longboat_runtime.samples import FinishReason, Grade, GradeKind, PromptId, Response, Row, SampleId

pytestmark = pytest.mark.slow

FUNCTIONS = """
import time
from longboat_runtime.reward.result import RewardResult

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
TEXTS = ["42", "", "sleep", "fail", "exec"]


class Texts:
    """A store that holds the same few texts for ever."""

    async def responses(self, ids: Sequence[SampleId]) -> dict[SampleId, Response]:
        return {i: Response(TEXTS[i.row], FinishReason.REPETITION, 3) for i in ids if i.row < len(TEXTS)}


def sample(row: int) -> tuple[SampleId, Row]:
    return SampleId(0, row, 0, 0), Row(PromptId(0, row), "6*7=", (1,), ground_truth="42", columns={"prompt": "6*7="})


def job(rewards: list[dict[str, Any]]) -> RLJobSpec:
    return RLJobSpec.model_validate(
        {
            "runtimeRef": {"name": "any"},
            "model": {"path": "/model"},
            "dataset": {"files": {"paths": ["/rows.jsonl"]}},
            "rounds": {"steps": 1, "promptsPerRound": 1},
            "rollout": {"sampling": {"maxTokens": 8}},
            "rewards": rewards,
        }
    )


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    # Short, since Ray puts sockets below it.
    directory = tempfile.mkdtemp(prefix="ray-")
    with bare_nodes():
        ray.init(
            address="local",
            _temp_dir=directory,
            num_cpus=1,
            resources={"longboat-reward": 2},
            object_store_memory=80_000_000,
            namespace="longboat",
            log_to_driver=False,
        )
    yield
    ray.shutdown()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def functions(graders_directory: Path) -> Path:
    path = graders_directory / "functions.py"
    path.write_text(FUNCTIONS)
    return path


@pytest_asyncio.fixture
async def pool(cluster: None, graders: Path, functions: Path) -> AsyncIterator[RayRewardPool]:
    spec = job(
        [
            {"name": "exact", "function": f"{functions}:exact"},
            {"name": "length", "signature": "Verl", "function": f"{functions}:verl", "weight": 0.5},
            {"name": "act", "function": f"{functions}:act", "timeoutSeconds": 1.0},
        ]
    )
    pool = RayRewardPool(spec, Texts(), graders)  # type: ignore[arg-type]
    await pool.start()
    yield pool
    await pool.close()


async def test_right_wrong_form_timeout_and_error_are_told_apart(pool: RayRewardPool) -> None:
    right, wrong_form, late, failed = await asyncio.gather(*(pool.grade(*sample(row)) for row in range(4)))
    assert (right.kind, right.score, dict(right.parts)) == (
        GradeKind.SCORED,
        1.1,
        {"exact": 1.0, "length": 0.2, "act": 0.0},
    )
    assert (wrong_form.kind, wrong_form.score) == (GradeKind.WRONG_FORMAT, 0.0)
    assert (late.kind, late.message) == (GradeKind.TIMEOUT, "act: killed after 1 s")
    assert failed.kind is GradeKind.GRADER_ERROR
    assert "RuntimeError: as asked" in failed.message


async def test_once_nothing_more_is_generated_no_answer_waits_for_others(
    pool: RayRewardPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second sample takes long, so that the call under way brings the first one's answer alone."""
    monkeypatch.setattr("longboat_runtime.reward.pool.GATHER_SECONDS", 60.0)
    grading = asyncio.gather(*(pool.grade(*sample(row)) for row in (0, 2)))
    (worker,) = pool._workers.values()
    while not worker.listening:  # noqa: ASYNC110 - nothing says so
        await asyncio.sleep(0.01)
    pool.flush()
    async with asyncio.timeout(30.0):
        assert [grade.kind for grade in await grading] == [GradeKind.SCORED, GradeKind.TIMEOUT]


async def test_a_sample_that_the_store_has_lost_is_told_from_those_that_it_has(pool: RayRewardPool) -> None:
    right, lost, again = await asyncio.gather(
        *(pool.grade(*sample(row)) for row in (0, len(TEXTS), 0)), return_exceptions=True
    )
    assert isinstance(lost, KeyError)
    assert [grade.score for grade in (right, again) if isinstance(grade, Grade)] == [1.1, 1.1]


async def test_a_reward_that_runs_code_of_its_own_is_known_to_need_a_process_for_each_grade(
    pool: RayRewardPool,
) -> None:
    for text in ("42", "exec"):
        assert (await pool.grade(*sample(TEXTS.index(text)))).kind is GradeKind.SCORED
    in_force = {name: one.isolation for name, one in pool.isolation.items()}
    assert in_force == {
        "exact": RewardIsolation.AUTO,
        "length": RewardIsolation.AUTO,
        "act": RewardIsolation.PER_GRADE,
    }
    assert "functions.py line" in pool.isolation["act"].reason


async def test_a_worker_that_dies_costs_nothing(pool: RayRewardPool) -> None:
    grading = asyncio.gather(*(pool.grade(*sample(0)) for _ in range(20)))
    await asyncio.sleep(0.05)
    (worker,) = pool._workers.values()
    ray.kill(worker.actor)
    assert [grade.score for grade in await grading] == [1.1] * 20


async def test_graders_that_restart_are_found_again(
    cluster: None,
    functions: Path,
    start_graders: Callable[..., AbstractContextManager[Path]],
    graders_directory: Path,
) -> None:
    directory = graders_directory / "restarting"
    directory.mkdir()
    spec = job([{"name": "exact", "function": f"{functions}:exact"}])
    pool = RayRewardPool(spec, Texts(), directory / "graders.sock")  # type: ignore[arg-type]
    assert not pool.serving
    with start_graders(directory):
        await pool.start()
        assert pool.serving
        assert (await pool.grade(*sample(0))).score == 1.0
    with start_graders(directory):
        assert (await pool.grade(*sample(0))).score == 1.0
    await pool.close()
    assert not pool.serving


async def test_a_grade_that_never_ends_holds_up_no_other(
    cluster: None,
    functions: Path,
    start_graders: Callable[..., AbstractContextManager[Path]],
    graders_directory: Path,
) -> None:
    directory = graders_directory / "own"
    directory.mkdir()
    spec = job([{"name": "act", "function": f"{functions}:act", "timeoutSeconds": 3600}])
    with start_graders(directory) as socket:
        pool = RayRewardPool(spec, Texts(), socket)  # type: ignore[arg-type]
        await pool.start()
        endless, score = sample(TEXTS.index("sleep")), sample(0)
        waiting = asyncio.gather(pool.grade(*endless), return_exceptions=True)
        assert [(await grade).score for grade in [asyncio.create_task(pool.grade(*score)) for _ in range(20)]] == [
            0.0
        ] * 20
        assert not waiting.done()
        await pool.close()
        waiting.cancel()


async def test_a_function_that_is_not_there_fails_the_start(cluster: None, graders: Path, functions: Path) -> None:
    spec = job([{"name": "ok", "function": f"{functions}:exact"}, {"name": "typo", "function": f"{functions}:exactly"}])
    pool = RayRewardPool(spec, Texts(), graders)  # type: ignore[arg-type]
    with pytest.raises(SpecProblem, match="Did you mean 'exact'") as caught:
        await pool.start()
    assert caught.value.field == "spec.rewards[1].function"
