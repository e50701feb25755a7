"""A driver has engines reshaped beside training, as measured rounds ask for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from longboat_crds.rollout import ParallelismMode, ParallelismSpec
from longboat_runtime.driver import reshapes as module
from longboat_runtime.driver.loop import RunOutcome
from longboat_runtime.driver.reshapes import starting_shape
from longboat_runtime.rollout.load import Load
from longboat_runtime.rollout.parallelism import Bounds
from longboat_runtime.rounds import events
from tests.driver.fakes import Site, make_spec
from tests.driver.runs import history, manifests

PREEMPTIONS = ParallelismSpec(mode=ParallelismMode.PREEMPTIONS)


@pytest.fixture(autouse=True)
def sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "bounds_of", lambda job: Bounds((1, 2, 4), job.spec.rollout.tensor_parallel))


def site_of(root: Path, parallelism: ParallelismSpec = PREEMPTIONS, **rounds: Any) -> Site:
    spec = make_spec(**{"steps": 4, "checkpoint": {"every_steps": 1}, **rounds})
    return Site(root, spec.model_copy(update={"rollout": spec.rollout.model_copy(update={"parallelism": parallelism})}))


async def run(site: Site, *preemptions: int, unfit: frozenset[int] = frozenset(), start: int = 1) -> None:
    """A run whose rounds have these preemptions."""
    driver = site.driver()
    site.fleet.tensor_parallel, site.fleet.unfit = start, set(unfit)

    async def loads() -> dict[str, Load]:
        number = driver._view.last_round
        return {"engine-0": Load(site.fleet.tensor_parallel, preemptions=preemptions[number - 1])} if number else {}

    site.fleet.loads = loads  # type: ignore[method-assign]
    assert await driver.run() is RunOutcome.DONE


def reshapes(site: Site) -> list[events.Reshaped]:
    return [body for body in history(site) if isinstance(body, events.Reshaped)]


async def test_engines_are_reshaped_before_the_next_round(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    await run(site, 10, 20, 20, 20)
    assert site.fleet.reshaped == [(2, False)]
    (body,) = reshapes(site)
    assert (body.tensor_parallel, body.seconds, body.failure) == (2, {"start": 2.0}, "")
    assert body.reason == "preemptions in Short rounds rose from 10 to 20: 1 -> 2 devices an engine"
    bodies = history(site)
    opened = [i for i, one in enumerate(bodies) if isinstance(one, events.RoundOpened)]
    assert opened[1] < bodies.index(body) < opened[2], "beside the training of the second round"
    measured = [one.tensor_parallel for one in bodies if isinstance(one, events.RoundMeasured)]
    assert measured == [1, 1, 2, 2]
    status = site.broker.status.training
    assert status.tensor_parallel == 2
    assert [(one.step, one.kind, one.tensor_parallel, one.reason) for one in status.reshapes] == [
        (2, "Short", 2, body.reason)
    ]
    assert manifests(tmp_path)[-1]["parallelism"]["tensor_parallel"] == 2


async def test_a_shape_that_fails_is_told_and_not_tried_again(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    await run(site, 10, 20, 40, 80, unfit=frozenset({2, 4}))
    assert site.fleet.reshaped == [(2, False), (4, False)]
    assert [(body.tensor_parallel, body.failure) for body in reshapes(site)] == [(1, "it doesn't fit")] * 2
    assert site.broker.status.training.reshapes[-1].failure == "it doesn't fit"


async def test_off_policy_rounds_go_on_in_other_pods(tmp_path: Path) -> None:
    site = site_of(tmp_path, policy="BoundedAsync", max_staleness=1)
    await run(site, *range(10, 1000, 20))
    assert site.fleet.reshaped[0] == (2, True)


async def test_a_fixed_shape_stays(tmp_path: Path) -> None:
    site = site_of(tmp_path, ParallelismSpec())
    await run(site, 10, 20, 40, 80)
    assert not site.fleet.reshaped


async def test_the_plan_survives_the_driver(tmp_path: Path) -> None:
    site = site_of(tmp_path, steps=2)
    await run(site, 10, 20)
    state = manifests(tmp_path)[-1]
    assert starting_shape(site.spec.rollout, state) == state["parallelism"]["tensor_parallel"]
    assert starting_shape(make_spec().rollout, state) == 1, "fixed by the spec"
    site.spec = site.spec.model_copy(update={"rounds": site.spec.rounds.model_copy(update={"steps": 4})})
    await run(site, 10, 20, 30, 40, start=2)
    assert site.fleet.reshaped[-1] == (4, False), "the third round has more than the second"
