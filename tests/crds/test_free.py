"""Every field that may be edited while a job runs is followed: by its driver, by the operator, or by both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longboat_crds.base import Role
from longboat_crds.checkpoint import TrainingInput
from longboat_crds.fixed import FREE
from longboat_crds.job import RLJobSpec
from longboat_crds.problems import spec_problem_in
from longboat_crds.reasons import Reason
from longboat_crds.rollout import ParallelismMode, ParallelismSpec
from longboat_crds.samples import SamplesSpec
from longboat_crds.status import Phase
from longboat_runtime.checkpoint.digests import differences, read
from longboat_runtime.checkpoint.protocol import Manifest
from longboat_runtime.driver import shape_plan
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.rollout.load import Load
from longboat_runtime.rollout.parallelism import Bounds
from longboat_runtime.rollout.protocol import FleetState
from longboat_runtime.sample_files.reading import read_files
from longboat_runtime.samples import LostSample, SampleId
from tests.crds.test_fixed import leaves
from tests.driver.fakes import FakeFleet, Site, make_spec
from tests.driver.runs import saved_steps, trained, until
from tests.operator_plan.simulated_cluster import SimulatedCluster, runtime_of, spec_of, with_environments

Check = Callable[[Path], None]
FIELDS = [leaf for leaf in leaves(RLJobSpec) if any(leaf == path or leaf.startswith(f"{path}.") for path in FREE)]
CHECKS: dict[str, Check] = {}
SLOW = SampleId(0, 0, 0, 0)


def of(*fields: str) -> Callable[[Check], Check]:
    """Registers what shows that an edit of these fields is followed."""

    def register(check: Check) -> Check:
        CHECKS.update(dict.fromkeys(fields, check))
        return check

    return register


@pytest.mark.parametrize("field", FIELDS)
def test_an_edit_of_a_running_job_is_followed(field: str, tmp_path: Path) -> None:
    assert field in CHECKS, "free, and nothing shows that anybody follows it"
    CHECKS[field](tmp_path)


def test_there_is_no_check_of_a_field_that_is_not_free() -> None:
    assert CHECKS.keys() <= set(FIELDS)


# --- The driver ---------------------------------------------------------------------------------------------------


def drive(root: Path, then: Callable[[Site], None], **edit: Any) -> Site:
    """A job of five steps to its end, edited while its first round waits for a response. `then` happens once the driver knows."""
    site = Site(root, make_spec())

    async def edited() -> RunOutcome:
        driver = site.driver()
        site.fleet.hang = {SLOW}
        job = asyncio.create_task(driver.run())
        await until(lambda: site.fleet.running.keys() == site.fleet.hang, job)
        site.broker.edit(**edit)
        for _ in range(10):
            await asyncio.sleep(0)
        then(site)
        return await job

    assert asyncio.run(edited()) is RunOutcome.DONE
    return site


def go_on(site: Site) -> None:
    """The response is made again, and comes this time."""
    site.fleet.hang.clear()
    site.fleet.done.put_nowait(LostSample(SLOW, "its engine is gone"))


@of("rounds.steps")
def steps(root: Path) -> None:
    site = drive(root, go_on, rounds={"steps": 7})
    assert [step for step, _ in trained(site)] == [1, 2, 3, 4, 5, 6, 7]


@of("checkpoint.everySteps")
def every_steps(root: Path) -> None:
    drive(root, go_on, checkpoint={"every_steps": 3})
    assert saved_steps(root) == [3, 5]


@of("checkpoint.keep")
def keep(root: Path) -> None:
    drive(root, go_on, checkpoint={"keep": 1})
    assert saved_steps(root) == [5]


@of("checkpoint.acceptChanges")
def accepted_changes(root: Path) -> None:
    """Followed while a driver waits, with the inputs of its checkpoint changed."""
    site = drive(root, go_on)
    site.digests = {TrainingInput.MODEL: {"config.json": "2"}}
    saved = Manifest(1, 5, root, {"digests": {"Model": {"config.json": "1"}}}, ())

    async def accepted() -> None:
        driver = site.driver()
        settling = asyncio.create_task(driver._changes.settle(differences(read(saved.state), site.digests), saved))
        edits = asyncio.gather(driver._edits(), site.reporter.run())
        await until(lambda: site.broker.status.problem is not None, settling)
        site.broker.edit(checkpoint={"accept_changes": [TrainingInput.MODEL]})
        await settling
        edits.cancel()

    asyncio.run(accepted())


@of("samples")
def samples(root: Path) -> None:
    drive(root, go_on, samples=SamplesSpec(every_steps=2))
    assert list(read_files(root)) == [1, 2, 4, 5]


@of(
    "rollout.parallelism.mode",
    "rollout.parallelism.minTensorParallel",
    "rollout.parallelism.maxTensorParallel",
)
def parallelism(root: Path) -> None:
    """Engines of one device, of which pods have four, become engines of two; so do engines of four."""
    for start, fields in ((1, {"min_tensor_parallel": 2}), (4, {"max_tensor_parallel": 2})):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shape_plan, "bounds_of", lambda job, start=start: Bounds((1, 2, 4), start))
            patch.setattr(
                Site, "open_fleet", lambda site, order, start=start: FakeFleet(site.store, tensor_parallel=start)
            )

            def loaded(site: Site, start: int = start) -> None:
                site.fleet.load = {"engine-0": Load(start)}
                go_on(site)

            wanted = ParallelismSpec(mode=ParallelismMode.ADAPTIVE, **fields)
            site = drive(root / str(start), loaded, rollout={"parallelism": wanted})
        assert site.fleet.reshaped[0] == (2, False)


@of("rollout.parallelism.profile")
def profile(root: Path) -> None:
    """An edit to a profile that can't be used is told, and the job keeps its plan."""

    def loaded(site: Site) -> None:
        go_on(site)

    wanted = ParallelismSpec(mode=ParallelismMode.ADAPTIVE, profile=str(root / "none.json"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shape_plan, "read_model_config", lambda config: {})
        site = drive(root, loaded, rollout={"parallelism": wanted})
    problem = site.broker.status.problem
    assert (problem.reason, problem.field) == (Reason.PROFILE_INVALID, "spec.rollout.parallelism.profile")
    assert not site.fleet.reshaped


# --- The operator -------------------------------------------------------------------------------------------------


def running(**spec: Any) -> SimulatedCluster:
    cluster = SimulatedCluster(spec_of(**spec))
    cluster.up()
    cluster.train(7, checkpoint={"incarnation": 1, "step": 4})
    cluster.settle()
    assert cluster.status.phase is Phase.RUNNING
    return cluster


def reason(cluster: SimulatedCluster) -> tuple[Phase | None, str | None]:
    cluster.settle()
    return cluster.status.phase, cluster.status.reason


@of(
    "failurePolicy.maxDriverRestarts",
    "failurePolicy.maxRewardRestarts",
    "failurePolicy.maxTrainerRestarts",
    "failurePolicy.maxEnvironmentRestarts",
)
def restarts(root: Path) -> None:
    for role in (Role.DRIVER, Role.REWARD, Role.TRAINER, Role.ENVIRONMENT):
        cluster = running(**with_environments())
        cluster.edit(failurePolicy={f"max{role.title()}Restarts": 0})
        cluster.crash(cluster.pods(role)[0]["metadata"]["name"])
        assert reason(cluster) == (Phase.FAILED, Reason.RESTART_LIMIT_EXCEEDED)


@of("failurePolicy.maxRolloutRestarts")
def rollout_restarts(root: Path) -> None:
    """Of pods by the operator, of engines in pods that live by the driver."""
    cluster = running()
    cluster.edit(failurePolicy={"maxRolloutRestarts": 0})
    cluster.crash("sums-rollout-0-a0")
    assert reason(cluster) == (Phase.FAILED, Reason.RESTART_LIMIT_EXCEEDED)
    with pytest.raises(ExceptionGroup) as failed:
        drive(root, an_engine_dies, failure_policy={"max_rollout_restarts": 0})
    problem = spec_problem_in(failed.value)
    assert problem
    assert problem.reason == Reason.RESTART_LIMIT_EXCEEDED


def an_engine_dies(site: Site) -> None:
    site.fleet.set_state(FleetState(("engine-0",), deaths=1, last_death="out of memory"))


@of("failurePolicy.backoffSeconds")
def backoff(root: Path) -> None:
    cluster = running()
    cluster.edit(failurePolicy={"backoffSeconds": 60})
    assert [seconds for seconds in (30, 40) if replaced_within(cluster, seconds)] == [40]


@of("failurePolicy.maxBackoffSeconds")
def longest_backoff(root: Path) -> None:
    cluster = running(failurePolicy={"backoffSeconds": 60, "maxBackoffSeconds": 300})
    assert replaced_within(cluster, 61)
    cluster.start_all()
    cluster.edit(failurePolicy={"maxBackoffSeconds": 60})
    assert replaced_within(cluster, 61), "the second wait would be 120 s"


def replaced_within(cluster: SimulatedCluster, seconds: float) -> bool:
    """Whether a rollout pod that is gone has a successor by then."""
    before = {pod["metadata"]["name"] for pod in cluster.pods(Role.ROLLOUT)}
    if len(before) == 2:
        cluster.delete_pod(min(before), grace=0)
        cluster.settle()
    cluster.advance(seconds)
    cluster.settle()
    return len(cluster.pods(Role.ROLLOUT)) == 2


@of("failurePolicy.startDeadlineSeconds")
def start_deadline(root: Path) -> None:
    cluster = SimulatedCluster()
    cluster.settle()
    cluster.start_all()
    cluster.settle()
    cluster.edit(failurePolicy={"startDeadlineSeconds": 30})
    cluster.advance(31)
    assert reason(cluster) == (Phase.FAILED, Reason.START_DEADLINE_EXCEEDED)


@of("failurePolicy.placementTimeoutSeconds")
def placement_timeout(root: Path) -> None:
    cluster = SimulatedCluster()
    cluster.settle()
    cluster.start("sums-driver-0-a0")
    cluster.settle()
    cluster.edit(failurePolicy={"placementTimeoutSeconds": 30})
    cluster.advance(61)
    assert reason(cluster) == (Phase.QUEUED, Reason.PODS_RELEASED)


@of("failurePolicy.recoveryTimeoutSeconds")
def recovery_timeout(root: Path) -> None:
    cluster = running()
    cluster.delete_pod("sums-trainer-0-a0", grace=0)
    cluster.settle()
    cluster.edit(failurePolicy={"recoveryTimeoutSeconds": 30})
    cluster.advance(31)
    assert reason(cluster) == (Phase.QUEUED, Reason.PODS_RELEASED)


@of("checkpoint.graceSeconds", "suspend")
def suspension(root: Path) -> None:
    cluster = running(checkpoint={"graceSeconds": 120})
    cluster.edit(suspend=True)
    cluster.settle()
    cluster.edit(checkpoint={"graceSeconds": 30})
    cluster.advance(31)
    cluster.settle()
    cluster.end_deleted()
    assert reason(cluster) == (Phase.SUSPENDED, Reason.NO_CHECKPOINT_IN_TIME)


@of("checkpoint.reclaimPolicy")
def reclaim_policy(root: Path) -> None:
    cluster = running()
    cluster.edit(checkpoint={"reclaimPolicy": "Delete"})
    cluster.settle()
    cluster.delete_job()
    assert not cluster.children["PersistentVolumeClaim"]


@of("checkpoint.adopt")
def adopted(root: Path) -> None:
    """Followed while the job waits for the claim that an earlier one left."""
    cluster = running()
    cluster.delete_job()
    later = SimulatedCluster()
    assert later.job is not None
    later.job["metadata"]["uid"] = "later"
    later.children["PersistentVolumeClaim"] = cluster.children["PersistentVolumeClaim"]
    later.settle()
    assert not later.pods()
    later.edit(checkpoint={"adopt": True})
    later.settle()
    assert later.pods()


@of("labels", "annotations")
def metadata(root: Path) -> None:
    cluster = running()
    cluster.edit(labels={"team": "search"}, annotations={"note": "hello"})
    cluster.settle()
    for kind, name in (("Service", "sums-head"), ("PersistentVolumeClaim", "sums-checkpoint")):
        found = cluster.children[kind][name]["metadata"]
        assert found["labels"]["team"] == "search"
        assert found["annotations"]["note"] == "hello"


@of("rollout.replicas")
def replicas(root: Path) -> None:
    cluster = running()
    cluster.edit(rollout={"replicas": 5})
    cluster.settle()
    assert len(cluster.pods(Role.ROLLOUT)) == 5


@of("rollout.minReplicas")
def fewest_replicas(root: Path) -> None:
    """However few the driver asks for."""
    cluster = running(rollout={"replicas": 4})
    cluster.start_all()
    cluster.settle()
    cluster.edit(rollout={"minReplicas": 3})
    cluster.ask(0)
    cluster.settle()
    assert len(cluster.leaving) == 1


@of("runtimeRef.renewOnResume")
def renewal(root: Path) -> None:
    cluster = running()
    cluster.edit(suspend=True)
    cluster.train(0, "Suspended")
    cluster.settle()
    cluster.end_deleted()
    cluster.settle()
    cluster.runtime = runtime_of(image="longboat-runtime:2")
    cluster.edit(runtimeRef={"renewOnResume": True}, suspend=False)
    cluster.settle()
    assert {container["image"] for pod in cluster.pods() for container in pod["spec"]["containers"]} == {
        "longboat-runtime:2"
    }


@of("ttlSecondsAfterFinished")
def time_to_live(root: Path) -> None:
    cluster = running()
    cluster.edit(ttlSecondsAfterFinished=3600)
    cluster.train(93, "Succeeded")
    cluster.settle()
    cluster.end_deleted()
    cluster.edit(ttlSecondsAfterFinished=60)
    cluster.advance(61)
    cluster.settle()
    assert cluster.job is None
