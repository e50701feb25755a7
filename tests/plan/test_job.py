"""The plan of a job that starts."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.driver import assembly
from longboat_runtime.plan.job import JobPlan, Pod, planned, smallest
from longboat_runtime.plan.needs import DEVICE_OVERHEAD
from longboat_runtime.trainer.group import RayTrainerGroup
from tests.plan.planned import GIB, MIB, make_spec, write_config

ROOMY = Pod(80 * GIB, GIB, None)


def test_the_smallest_pod_counts() -> None:
    pods = [Pod(80, 5, None), Pod(40, 7, 9), Pod(60, 6, 8)]
    assert smallest(pods) == Pod(40, 5, 8)
    assert smallest(pods[:1]) == pods[0]


def test_recomputation_that_is_left_open_is_decided_by_the_device(tmp_path: Path) -> None:
    spec = make_spec(
        write_config(tmp_path, "small"),
        trainer={"gradientCheckpointing": None, "maxTokensPerBin": 4096},
    )
    assert planned(spec, ROOMY, tmp_path)
    answers = {planned(spec, Pod(DEVICE_OVERHEAD + size * MIB, GIB, None), tmp_path) for size in (28, 40, 80)}
    assert answers == {True, False}


@pytest.mark.parametrize(
    ("pod", "field"),
    [
        # No change fits, so all are tried, up to thousands of ranks.
        pytest.param(Pod(DEVICE_OVERHEAD + 1, GIB, None), "spec.", marks=pytest.mark.extended),
        (Pod(80 * GIB, 100 * MIB, None), "runtime spec.roles.trainer.template.spec.volumes[shm].emptyDir.sizeLimit"),
        (
            Pod(80 * GIB, GIB, GIB),
            "runtime spec.roles.trainer.template.spec.containers[trainer].resources.limits.memory",
        ),
    ],
)
def test_what_a_pod_lacks_ends_the_job(pod: Pod, field: str, tmp_path: Path) -> None:
    with pytest.raises(SpecProblem) as problem:
        planned(make_spec(write_config(tmp_path, "small")), pod, tmp_path)
    assert problem.value.reason == Reason.DOES_NOT_FIT
    assert str(problem.value.field).startswith(field)


class Refusing:
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
        num_cpus=1, num_gpus=request.param, resources={"trainers": 2}, include_dashboard=False, log_to_driver=False
    )
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    ray.shutdown()


@pytest.mark.extended
@pytest.mark.parametrize("gpus", [0, 2], indirect=True)
def test_a_job_is_planned_once_and_only_on_gpus(gpus: None, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    spec = make_spec(write_config(tmp_path, "small"), trainer={"replicas": 2})
    plan = JobPlan(spec, "trainers", "engines", lambda: Pod(MIB, GIB, None))
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

    assert not asyncio.run(JobPlan(make_spec(tmp_path), "trainers", "engines", fail).fits())
