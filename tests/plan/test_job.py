"""The plan of a job that starts."""

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from longboat_crds.job import RLJobSpec
from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_crds.trainer import TrainerSpec
from longboat_runtime import ray_nodes
from longboat_runtime.driver import assembly
from longboat_runtime.plan import job
from longboat_runtime.plan.job import FOLDER, JobPlan, Outcome, Past, Pod, planned, smallest
from longboat_runtime.plan.needs import DEVICE_OVERHEAD
from longboat_runtime.ray_nodes import POD_LABEL, ROLE_LABEL, ROLLOUT_RESOURCE, TRAINER_RESOURCE, have_gpus, offering
from longboat_runtime.trainer.group import RayTrainerGroup
from longboat_runtime.trainer.placement import placed
from tests.plan.planned import GIB, MIB, make_spec, write_config

ROOMY = Pod(80 * GIB, GIB, None)


def plan(folder: Path, spec: RLJobSpec, pod: Pod, claim: int | None = GIB, *, trained: bool = False) -> Outcome:
    return planned(spec, pod, Past(folder, claim, trained))


def test_the_smallest_pod_counts() -> None:
    pods = [Pod(80, 5, None), Pod(40, 7, 9), Pod(60, 6, 8)]
    assert smallest(pods) == Pod(40, 5, 8)
    assert smallest(pods[:1]) == pods[0]


def test_recomputation_that_is_left_open_is_decided_by_the_device(tmp_path: Path) -> None:
    spec = make_spec(
        write_config(tmp_path, "small"),
        trainer={"gradientCheckpointing": None, "maxTokensPerBin": 4096},
    )
    assert plan(tmp_path, spec, ROOMY).fits
    answers = {plan(tmp_path, spec, Pod(DEVICE_OVERHEAD + size * MIB, GIB, None)).fits for size in (28, 40, 80)}
    assert answers == {True, False}


@pytest.mark.parametrize(
    ("pod", "field"),
    [
        # No change fits, so all are tried, with up to 64 times as many ranks.
        pytest.param(Pod(MIB, GIB, None), "spec.", marks=pytest.mark.extended),
        (Pod(80 * GIB, 100 * MIB, None), "runtime spec.roles.trainer.template.spec.volumes[shm].emptyDir.sizeLimit"),
        (
            Pod(80 * GIB, GIB, 100 * MIB),
            "runtime spec.roles.trainer.template.spec.containers[trainer].resources.limits.memory",
        ),
    ],
)
def test_what_a_pod_lacks_ends_the_job(pod: Pod, field: str, tmp_path: Path) -> None:
    spec = make_spec(write_config(tmp_path, "small"))
    problem = plan(tmp_path, spec, pod).problem
    assert problem is not None
    assert problem.reason == Reason.DOES_NOT_FIT
    assert str(problem.field).startswith(field)
    trained = plan(tmp_path, spec, pod, trained=True)
    assert trained.problem is None
    assert trained.warnings == [f"{problem.field}: {problem.message}"]


def test_what_only_an_assumed_number_decides_ends_no_job(tmp_path: Path) -> None:
    trainer = {"gradientCheckpointing": False, "maxTokensPerBin": 4096}
    spec = make_spec(write_config(tmp_path, "small"), trainer=trainer)
    outcome = plan(tmp_path, spec, Pod(DEVICE_OVERHEAD + 28 * MIB, GIB, GIB))
    assert outcome.problem is None
    fields = [warning.split(": ")[0].rpartition(".")[2] for warning in outcome.warnings]
    assert fields == ["gradientCheckpointing", "memory"]


def test_a_local_run_is_judged_by_its_device_alone(tmp_path: Path) -> None:
    spec = make_spec(write_config(tmp_path, "small"))
    outcome = plan(tmp_path, spec, Pod(80 * GIB, 64 * MIB, 100 * MIB), claim=None)
    assert (outcome.problem, outcome.warnings) == (None, [])


def test_a_claim_that_is_too_small_ends_the_job(tmp_path: Path) -> None:
    spec = make_spec(write_config(tmp_path, "small"))
    problem = plan(tmp_path, spec, ROOMY, claim=5 * MIB).problem
    assert problem is not None
    assert "spec.checkpoint.keep: 1" in problem.message


def test_all_that_does_not_fit_is_said_at_once_and_the_plan_shown(tmp_path: Path) -> None:
    outcome = plan(tmp_path, make_spec(write_config(tmp_path, "small")), Pod(80 * GIB, MIB, MIB), claim=MIB)
    assert outcome.problem is not None
    for field in ("volumes[shm].emptyDir.sizeLimit", "resources.limits.memory", "spec.checkpoint.volume.size"):
        assert field in str(outcome.problem)
        assert field in outcome.report
    assert "A trainer rank's device, by phase" in outcome.report


def test_figures_outlive_the_pod(tmp_path: Path) -> None:
    spec = make_spec(write_config(tmp_path, "small"))
    plan(tmp_path, spec, ROOMY)
    [kept] = (tmp_path / FOLDER).iterdir()
    kept.write_text(kept.read_text().replace('"parameters": ', '"parameters": 100000'))
    assert plan(tmp_path, spec, ROOMY).report.split()[0] != "0.00"


class Refusing:
    async def engines_may_start(self) -> None:
        await self.fits()

    async def fits(self) -> bool:
        raise SpecProblem(Reason.DOES_NOT_FIT, "spec.trainer.replicas", "too few")


class Engines:
    waited = False

    async def wait_started(self, engines: int) -> None:
        self.waited = True


async def test_neither_engines_nor_trainers_load_a_model_that_does_not_fit(tmp_path: Path) -> None:
    engines, trainer = Engines(), RayTrainerGroup(make_spec(tmp_path), None, Refusing())
    with pytest.raises(SpecProblem, match="DoesNotFit"):
        await assembly._engines_started(engines, Refusing(), 1)
    with pytest.raises(SpecProblem, match="DoesNotFit"):
        await trainer.load()
    assert not engines.waited


@pytest.fixture
def gpus(request: pytest.FixtureRequest) -> Iterator[None]:
    """A node of Ray with so many GPUs, as it believes."""
    ray.init(
        "local",
        num_cpus=1,
        num_gpus=request.param,
        resources={TRAINER_RESOURCE: 2},
        include_dashboard=False,
        log_to_driver=False,
    )
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    ray.shutdown()


@pytest.mark.extended
@pytest.mark.parametrize("gpus", [0, 2], indirect=True)
def test_a_job_is_planned_once_and_only_on_gpus(gpus: None, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    spec = make_spec(write_config(tmp_path, "small"), trainer={"replicas": 2})
    plan = JobPlan(spec, Past(tmp_path, None, trained=False), lambda: Pod(MIB, GIB, None))
    on_gpus = bool(request.node.callspec.params["gpus"])
    if on_gpus:
        for _ in range(2):
            with pytest.raises(SpecProblem, match="no setting makes it fit"):
                asyncio.run(plan.fits())
    else:
        assert asyncio.run(plan.fits())


@pytest.mark.extended
@pytest.mark.parametrize("gpus", [2], indirect=True)
def test_a_job_that_cannot_be_planned_starts(gpus: None, tmp_path: Path) -> None:
    def fail() -> Pod:
        raise RuntimeError("no driver")

    past = Past(tmp_path, None, trained=False)
    assert not asyncio.run(JobPlan(make_spec(tmp_path), past, fail).fits())


@pytest.mark.extended
@pytest.mark.parametrize("gpus", [2], indirect=True)
def test_a_process_that_dies_in_planning_decides_nothing_for_later_loads(gpus: None, tmp_path: Path) -> None:
    dead = tmp_path / "dead"
    dead.touch()

    def look() -> Pod:
        if dead.exists():
            os._exit(1)
        return ROOMY

    past = Past(tmp_path, None, trained=False)
    plan = JobPlan(make_spec(write_config(tmp_path, "small")), past, look)
    assert not asyncio.run(plan.fits())
    dead.unlink()
    assert asyncio.run(plan.fits())


@pytest.mark.extended
@pytest.mark.parametrize("gpus", [2], indirect=True)
def test_a_plan_that_takes_too_long_is_given_up(gpus: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec(write_config(tmp_path, "small"))
    plan = JobPlan(spec, Past(tmp_path, None, trained=False), lambda: ROOMY)
    with monkeypatch.context() as patch:
        patch.setattr(job, "PLAN_SECONDS", 0.1)  # Python itself takes longer to start
        assert not asyncio.run(plan.fits())
    assert asyncio.run(plan.fits())


@pytest.mark.extended
@pytest.mark.parametrize("gpus", [2], indirect=True)
@pytest.mark.parametrize("trained", [False, True])
def test_a_plan_ends_no_job_that_has_trained(gpus: None, tmp_path: Path, *, trained: bool) -> None:
    past = Past(tmp_path, None, trained=trained)
    plan = JobPlan(make_spec(tmp_path / "missing"), past, lambda: ROOMY)
    if trained:
        assert not asyncio.run(plan.fits())
    else:
        with pytest.raises(SpecProblem, match="ModelNotFound"):
            asyncio.run(plan.fits())


def node(name: str, resource: str, gpus: int = 0) -> dict[str, Any]:
    return {"NodeID": name, "Alive": True, "Resources": {resource: 1, "GPU": gpus}}


async def test_trainers_nodes_alone_say_whether_a_job_is_planned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nodes = [node("a", ROLLOUT_RESOURCE)]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(ray_nodes, "POLL_SECONDS", 0.001)
    plan = JobPlan(make_spec(tmp_path), Past(tmp_path, None, trained=False))
    await plan.engines_may_start()  # on CPUs, whatever trainers have
    waiting = asyncio.create_task(offering(TRAINER_RESOURCE, 1))
    await asyncio.sleep(0)
    assert not waiting.done()
    nodes.append(node("b", TRAINER_RESOURCE, gpus=1))
    assert have_gpus(await waiting)
    nodes[-1] = node("b", TRAINER_RESOURCE)
    assert await plan.fits()


async def test_the_first_rank_is_where_the_plan_was_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    both = [
        node(name, TRAINER_RESOURCE) | {"Labels": {ROLE_LABEL: "trainer", POD_LABEL: f"job-trainer-{place}-a0"}}
        for place, name in enumerate(("aa" * 28, "bb" * 28))
    ]
    plan = JobPlan(make_spec(tmp_path), Past(tmp_path, None, trained=False))
    for nodes in (both, both[::-1]):
        monkeypatch.setattr(ray, "nodes", lambda nodes=nodes: nodes)
        first, _ = await placed(TrainerSpec(replicas=2))
        assert plan._beside(first)["scheduling_strategy"].node_id == "aa" * 28
