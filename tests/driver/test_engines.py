"""Engines that don't serve or die: what the driver reports, and when it gives up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.problems import spec_problem_in
from longboat_crds.reasons import Reason
from longboat_runtime.driver.engines import EngineDeaths
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.metrics.record import read_records
from longboat_runtime.rollout.protocol import FleetState
from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import DropReason
from longboat_runtime.samples import PromptId, SampleId
from tests.driver.fakes import Site, make_spec
from tests.driver.runs import history, manifests, trained, until


async def test_engines_that_die_too_often_without_a_step_fail_the_job(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec())
    driver = site.driver()
    limit = site.spec.failure_policy.max_rollout_restarts
    site.fleet.hang = {SampleId(0, 0, 0, 0)}
    running = asyncio.create_task(driver.run())
    await until(lambda: site.fleet.running.keys() == site.fleet.hang, running)
    site.fleet.set_state(FleetState(("e",), deaths=limit, last_death="engine e died: out of memory"))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not running.done(), "as many as the limit are allowed"
    site.fleet.set_state(FleetState((), deaths=limit + 1, last_death="engine e died: out of memory"))
    with pytest.raises(ExceptionGroup) as failed:
        await running
    problem = spec_problem_in(failed.value)
    assert (problem.reason, problem.fatal) == (Reason.RESTART_LIMIT_EXCEEDED, True)
    assert problem.field == "spec.failurePolicy.maxRolloutRestarts"
    assert "out of memory" in problem.message


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5))))
def test_only_deaths_since_the_last_new_step_count(seen: list[tuple[int, int]]) -> None:
    """A step that is repeated after resuming from a checkpoint is not new."""
    deaths, highest = EngineDeaths(), 0
    since: list[int] = []
    for more, step in seen:
        if step > highest:
            highest, since = step, []
        since.append(more)
        deaths = deaths.counted(more, step)
        assert (deaths.number, deaths.step) == (sum(since), highest)
        assert (deaths.over(4, "why") is not None) == (sum(since) > 4)


async def test_refused_engines_degrade_the_job_while_others_serve(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec())
    driver = site.driver()
    site.fleet.hang = {SampleId(0, 0, 0, 0)}
    running = asyncio.create_task(driver.run())

    def reason() -> str | None:
        return site.broker.status.problem and site.broker.status.problem.reason

    await until(lambda: site.fleet.running.keys() == site.fleet.hang, running)
    site.fleet.set_state(FleetState(("a",), refused={"b": "engine b refused version 0: log-probs differ by 0.3"}))
    await until(lambda: reason() == Reason.ENGINE_REFUSED, running)
    assert "differ by 0.3" in site.broker.status.problem.message
    assert not site.broker.status.problem.fatal
    site.fleet.set_state(FleetState((), refused={"a": "differs", "b": "differs"}))
    await until(lambda: reason() == Reason.NO_ENGINES, running)
    site.fleet.set_state(FleetState((), unreached={"a": "engine a could not get version 0: no route to host"}))
    await until(lambda: "no route" in site.broker.status.problem.message, running)
    assert reason() == Reason.NO_ENGINES
    site.fleet.set_state(FleetState((), deaths=1, last_death="engine a died: out of memory"))
    await until(lambda: "out of memory" in site.broker.status.problem.message, running)
    assert reason() == Reason.NO_ENGINES
    site.fleet.set_state(FleetState(("a", "b"), deaths=1, last_death="engine a died: out of memory"))
    await until(lambda: reason() is None, running)
    site.broker.suspend()
    assert await running is RunOutcome.SUSPENDED


async def test_a_prompt_that_engines_die_with_is_dropped_and_the_job_ends(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec())
    driver = site.driver()
    killer = SampleId(0, 1, 0, 1)
    site.fleet.kill = {killer}
    assert await driver.run() is RunOutcome.DONE
    given_up = [body for body in history(site) if isinstance(body, events.GroupDropped)]
    assert given_up == [events.GroupDropped(PromptId(0, 1), 0, DropReason.ENGINE_DEATHS)]
    assert sum(request.id == killer for request in site.fleet.requests) == 3
    assert [len(samples) for _, samples in trained(site)] == [2, 4, 4, 4, 4]
    assert read_records(tmp_path)[1].metrics["rollout/dropped_groups/engine_deaths"] == 1
    assert not site.store.samples


async def test_a_held_out_sample_that_engines_die_with_is_left_out(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(steps=1, evaluation={"every_steps": 1}))
    driver = site.driver()
    site.fleet.kill = {SampleId(-1, 0, 0, 0)}
    assert await driver.run() is RunOutcome.DONE
    assert "val/score/mean" in read_records(tmp_path)[0].metrics


async def test_the_calibration_of_the_gate_outlives_the_driver(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec())
    driver = site.driver()
    site.fleet.calibrations["bfloat16/2"] = 0.03
    assert await driver.run() is RunOutcome.DONE
    assert manifests(tmp_path)[-1]["calibrations"] == {"bfloat16/2": 0.03}
    driver = site.driver()
    assert await driver.run() is RunOutcome.DONE
    assert site.fleet.calibrations == {"bfloat16/2": 0.03}


@pytest.mark.parametrize("held_out", [False, True], ids=["while a round waits", "while an evaluation waits"])
async def test_weights_that_no_engine_can_fetch_are_published_again(tmp_path: Path, held_out: bool) -> None:
    """Their data is gone with the trainer that held it, and the trainer has nothing to do while no engine serves."""
    site = Site(tmp_path, make_spec(**({"evaluation": {"every_steps": 1}} if held_out else {})))
    driver = site.driver()
    hanging = SampleId(-1, 0, 0, 0) if held_out else SampleId(0, 0, 0, 0)
    site.fleet.hang = {hanging}
    running = asyncio.create_task(driver.run())
    await until(lambda: site.fleet.running.keys() == site.fleet.hang, running)
    site.fleet.set_state(FleetState(("b",), unreached={"a": "no route to host"}, fetches=1))
    for _ in range(50):
        await asyncio.sleep(0)
    assert site.fleet.published == [0], "another engine serves"
    site.fleet.set_state(FleetState((), unreached={"a": "no route to host"}, fetches=2))
    await until(lambda: site.fleet.published == [0, 0] and not driver._steps._republishing, running)
    site.fleet.set_state(FleetState((), unreached={"a": "no route to host"}, fetches=3))
    await until(lambda: site.fleet.published == [0, 0, 0], running)
    site.broker.suspend()
    assert await running is RunOutcome.SUSPENDED
