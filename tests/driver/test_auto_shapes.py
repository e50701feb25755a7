"""promptOvercommitMode Auto and the planner of shapes together: each chooses for what the other has chosen, and both come to rest."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from longboat_crds.rollout import ParallelismMode, ParallelismSpec
from longboat_runtime.driver import overcommits as module
from longboat_runtime.driver.overcommits import Overcommits
from longboat_runtime.interfaces import EngineStats
from longboat_runtime.metrics.record import Record
from longboat_runtime.rollout.parallelism import KindPlan, ParallelismPlan, PlanRules, Upcoming
from longboat_runtime.rollout.predictions import Predictions
from longboat_runtime.rollout.step_times import StepTimes
from longboat_runtime.rollout.throughput import Profile
from longboat_runtime.rounds import events
from longboat_runtime.rounds.audit.history import LengthHistory, PromptHistory
from longboat_runtime.rounds.events import Event, RoundKind
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.loop import Effects
from longboat_runtime.rounds.policies import open_with
from longboat_runtime.rounds.view import View
from longboat_runtime.samples import PromptId
from longboat_runtime.simulate import overcommit
from longboat_runtime.simulate.lengths import TwoLevel
from longboat_runtime.simulate.overcommit import Choice
from longboat_runtime.simulate.shapes import FinishedRound, Shapes
from longboat_runtime.simulate.simulation import Simulation, number_prompts
from longboat_runtime.simulate.site import Site as SimulatedSite
from tests.driver.planned import CHANGE, PROFILE, TRUE, WRONG, Planner

pytestmark = pytest.mark.extended

LONGEST, START = 4000, 1.25
ROUNDS: dict[str, Any] = {
    "policy": "TailBatching",
    "prompt_overcommit": START,
    "sample_overcommit": 1.0,
    "prompt_overcommit_mode": "Auto",
    "prompts_per_round": 8,
    "steps": 1000,
    "algorithm": {"group_size": 4},
    "sampling": {"max_tokens": LONGEST},
}
LENGTHS = TwoLevel(800, 1.0, 0.3, LONGEST)
SHAPES, OVERCOMMIT = "shapes", "overcommit"


class Job(Simulation):
    """A job whose engines have the shapes that the driver's planner says, and whose short rounds the factor that Auto says.

    `changes` are those of both, with their periods.
    """

    def __init__(self, planner: Planner) -> None:
        self.planner, self.changes = planner, list[tuple[int, str]]()
        shapes = Shapes.profiled(PROFILE, self, 4)
        site = SimulatedSite(shapes=shapes, prompt_tokens=100, max_sequences=64, update=5.0)
        policy = open_with(planner.job.spec, START)
        super().__init__(policy, 4, site, LENGTHS, 1000, number_prompts, {})

    @property
    def sizes(self) -> Any:
        return self.planner.sizes

    def after_round(self, finished: FinishedRound) -> Job:
        before = self.sizes
        self.planner.reshapes.measured(finished.measured, finished.upcoming.following, finished.upcoming.rounds)
        if self.sizes != before:
            self.changes.append((self.planner.lengths.period, SHAPES))
        return self

    def carry_out(self, event: Event, effects: Effects) -> None:
        self.planner.lengths.fold(event.body)
        super().carry_out(event, effects)

    def chosen(self, body: events.Body) -> None:
        assert isinstance(body, events.OvercommitChosen)
        if body.factor != (self.view.overcommit or START):
            self.changes.append((self.planner.lengths.period, OVERCOMMIT))
        self._later(0.0, lambda: self._happens(body))


def auto(planner: Planner, world: Any, happened: Callable[[events.Body], None]) -> Overcommits:
    """The driver's own, of a job whose state is that of `world`."""
    overcommits = Overcommits(planner.job, planner.components, planner.site.reporter, planner.reshapes, happened)
    overcommits.resume(SimpleNamespace(lengths=planner.lengths, ledger=world.ledger, view=world.view))  # type: ignore[arg-type]
    return overcommits


async def both(planner: Planner, monkeypatch: pytest.MonkeyPatch, delay: int) -> Job:
    """Nine periods of a job with a constant load, in which a choice of the factor takes `delay` rounds."""
    await planner.resume()
    job = Job(planner)
    overcommits = auto(planner, job, job.chosen)

    async def in_background(work: Callable[[], Choice]) -> Choice:
        known = len(job.steps) + delay
        while len(job.steps) < known:  # noqa: ASYNC110 - the job goes on between events of the loop
            await asyncio.sleep(0)
        return work()

    monkeypatch.setattr(module, "in_background", in_background)
    monkeypatch.setattr(overcommit, "WINDOWS", 4)  # half of them take half as long
    choosing = asyncio.create_task(overcommits.run())
    while planner.lengths.period < 9 and job.proceed():
        await planner.settled()
        overcommits.consider(Record(0, 0.0, {"prompt_length/mean": 100.0}))
        await asyncio.sleep(0)
    choosing.cancel()
    assert planner.lengths.period == 9
    return job


def kinds_by_period(job: Job) -> list[set[str]]:
    return [{what for when, what in job.changes if when == period} for period in range(9)]


@pytest.mark.parametrize(
    ("profile", "delay"),
    [(PROFILE, 0), (WRONG, 2)],
    ids=["right profile, chosen at once", "wrong profile, chosen two rounds later"],
)
async def test_both_come_to_rest_on_a_constant_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: Profile, delay: int
) -> None:
    planner = Planner(tmp_path, monkeypatch, ParallelismMode.PREDICTIVE, profile, **ROUNDS)
    job = await both(planner, monkeypatch, delay)
    assert {what for _, what in job.changes} == {SHAPES, OVERCOMMIT}
    assert max(map(len, kinds_by_period(job))) == 1
    assert len(job.changes) <= 4
    assert not any(kinds_by_period(job)[5:])
    assert planner.sizes == {RoundKind.SHORT: 4, RoundKind.LONG: 4}, "the fastest by the engines' own times"


async def test_only_one_changes_in_a_period_though_both_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule of preemptions never rests, and the factor is due every few periods: in one of them both would change."""
    planner = Planner(tmp_path, monkeypatch, ParallelismMode.PREEMPTIONS, None, **ROUNDS)
    planner.site.fleet.stats = stats  # type: ignore[method-assign]
    waited: list[int] = []
    decided = ParallelismPlan.decided

    def noting(plan: ParallelismPlan, body: events.RoundMeasured, rules: PlanRules, upcoming: Upcoming) -> Any:
        free = decided(plan, body, rules, replace(upcoming, may_change=True))
        if not upcoming.may_change and free.sizes != plan.sizes:
            waited.append(planner.lengths.period)
        return decided(plan, body, rules, upcoming)

    monkeypatch.setattr(ParallelismPlan, "decided", noting)
    job = await both(planner, monkeypatch, 2)
    assert {what for _, what in job.changes} == {SHAPES, OVERCOMMIT}
    assert max(map(len, kinds_by_period(job))) == 1
    assert waited
    assert all(kinds_by_period(job)[period] == {OVERCOMMIT} for period in waited)


async def stats() -> list[EngineStats]:
    times = {4: StepTimes(1000, 20.0), 64: StepTimes(1000, 30.0)}
    return [EngineStats("engine-0", 0, 0, 0.0, 0, 100, 1, 100_000, times)]


class World:
    """A job that has made a few responses."""

    def __init__(self, planner: Planner) -> None:
        self.ledger = Ledger(4, 1000)
        self.view = View(self.ledger)
        planner.lengths.period = 1
        lengths = dict(enumerate((100, 200, 300, 400)))
        planner.lengths._prompts = {PromptId(0, 0): PromptHistory(PromptId(0, 0), 0, 4, finished={0: lengths})}


def plan(short: int, long: int) -> ParallelismPlan:
    """One whose engines of two devices have reported their KV cache."""
    kinds = {RoundKind.SHORT: KindPlan(short), RoundKind.LONG: KindPlan(long)}
    return ParallelismPlan(kinds, predictions=Predictions(kv_tokens={2: 50_000}))


async def simulated(planner: Planner, monkeypatch: pytest.MonkeyPatch, **snapshot: Any) -> SimulatedSite | None:
    """What Auto simulates rounds on, if it does; the factor that it chooses is the one that there is."""
    await planner.resume({"plan": plan(1, 2).to_snapshot(), **snapshot})
    found: list[SimulatedSite] = []

    async def in_background(work: Any) -> Choice:
        found.append(pickle.loads(pickle.dumps(work)).args[2])  # noqa: S301 - as it is sent to its process
        return Choice(START, {}, "")

    monkeypatch.setattr(module, "in_background", in_background)
    overcommits = auto(planner, World(planner), lambda body: None)
    await overcommits._choose()
    return found[0] if found else None


async def test_auto_simulates_with_the_planned_shapes_of_each_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the engines that there are have made no steps yet, as after each reshape."""
    planner = Planner(tmp_path, monkeypatch, ParallelismMode.PREDICTIVE, PROFILE, **ROUNDS)
    planner.site.fleet.state = replace(planner.site.fleet.state, pods=("pod-0", "pod-1"))
    site = await simulated(planner, monkeypatch)
    assert site is not None
    shapes = site.shapes
    assert shapes is not None
    assert shapes.planner.sizes == {RoundKind.SHORT: 1, RoundKind.LONG: 2}
    assert (shapes.devices, shapes.pods) == (4, 2)
    assert shapes.model(1) == TRUE[1]
    assert shapes.model(2) == replace(TRUE[2], kv_tokens=50_000)
    assert site.max_sequences == 64


@pytest.mark.parametrize(
    "profile",
    [
        None,
        Profile({2: TRUE[2]}, CHANGE),
        Profile({**TRUE, 1: replace(TRUE[1], kv_tokens=LONGEST)}, CHANGE),
    ],
    ids=["no profile", "a size that it lacks", "too small for the longest responses"],
)
async def test_auto_simulates_with_engines_as_they_are_if_the_profile_does_not_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: Profile | None
) -> None:
    mode = ParallelismMode.PREDICTIVE if profile else ParallelismMode.PREEMPTIONS
    planner = Planner(tmp_path, monkeypatch, mode, profile, **ROUNDS)
    assert await simulated(planner, monkeypatch) is None, "they have made no steps yet"
    planner.site.fleet.stats = stats  # type: ignore[method-assign]
    site = await simulated(planner, monkeypatch)
    assert site is not None
    assert site.shapes is None
    assert site.engines == 1


def measure(planner: Planner, *preemptions: int) -> bool:
    """Whether short rounds with so many preemptions change the plan."""
    before = planner.sizes
    for count in preemptions:
        body = events.RoundMeasured(1, RoundKind.SHORT, 1, 4, count, 0, 1000, 1, 0, 1.0, 1.0)
        planner.reshapes.measured(body, RoundKind.SHORT, 9)
    return planner.sizes != before


async def test_a_choice_during_which_shapes_change_is_made_anew_after_the_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that ends only in the next period."""
    planner = Planner(tmp_path, monkeypatch, ParallelismMode.PREEMPTIONS, None, **ROUNDS)
    await planner.resume()
    planner.site.fleet.stats = stats  # type: ignore[method-assign]
    happened: list[events.Body] = []
    world = World(planner)
    planner.lengths.period = 0
    overcommits = auto(planner, world, happened.append)
    choices: asyncio.Queue[Choice] = asyncio.Queue()
    begun: list[int] = []

    async def in_background(work: object) -> Choice:
        begun.append(planner.lengths.period)
        return await choices.get()

    async def passes(period: int) -> None:
        planner.lengths.period = period
        overcommits.consider(Record(0, 0.0))
        for _ in range(100):  # each wakes who waits for the one before
            await asyncio.sleep(0)

    monkeypatch.setattr(module, "in_background", in_background)
    choosing = asyncio.create_task(overcommits.run())
    await passes(4)
    assert measure(planner, 10, 100)
    await passes(5)
    choices.put_nowait(Choice(1.5, {}, ""))
    await passes(5)
    assert not happened
    assert begun == [4, 5]
    choices.put_nowait(Choice(1.5, {}, ""))
    await passes(5)
    assert [type(body) for body in happened] == [events.OvercommitChosen]
    assert not measure(planner, 1000)
    await passes(6)
    assert measure(planner, 10_000)
    await passes(7)
    choices.put_nowait(Choice(START, {}, ""))
    assert measure(planner, 0, 0, 0, 0)
    await passes(7)
    assert begun == [4, 5, 7]
    assert len(happened) == 2, "what changes nothing is told"
    choosing.cancel()


@pytest.mark.parametrize("first", [SHAPES, OVERCOMMIT])
async def test_what_has_changed_in_a_period_is_known_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    planner = Planner(tmp_path / "1", monkeypatch, ParallelismMode.PREEMPTIONS, None, **ROUNDS)
    await planner.resume()
    planner.lengths.period = 3
    if first == OVERCOMMIT:
        planner.reshapes.overcommitted()
    else:
        assert measure(planner, 10, 100)
    again = Planner(tmp_path / "2", monkeypatch, ParallelismMode.PREEMPTIONS, None, **ROUNDS)
    again.lengths = LengthHistory.from_snapshot(json.loads(json.dumps(planner.lengths.to_snapshot())))
    await again.resume(json.loads(json.dumps(planner.reshapes.snapshot)))
    assert again.reshapes.last_changes == planner.reshapes.last_changes
    assert again.reshapes.last_changes.overcommit_may_change(3) is (first == OVERCOMMIT)
    assert measure(again, 1000, 10_000) is (first == SHAPES)
    again.lengths.period = 4
    assert again.reshapes.last_changes.overcommit_may_change(4)
    assert measure(again, 100_000) is (first == OVERCOMMIT), "from 1 to 2 devices; from 4 there is no way up"


async def test_an_edit_of_parallelism_changes_shapes_in_any_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner = Planner(tmp_path, monkeypatch, ParallelismMode.PREEMPTIONS, None, **ROUNDS)
    await planner.resume()
    planner.lengths.period = 3
    planner.reshapes.overcommitted()
    bounds = ParallelismSpec(mode=ParallelismMode.PREEMPTIONS, min_tensor_parallel=2)
    await planner.reshapes.edit(planner.job.spec.rollout.model_copy(update={"parallelism": bounds}))
    assert planner.sizes == {RoundKind.SHORT: 2, RoundKind.LONG: 2}
    assert not planner.reshapes.last_changes.overcommit_may_change(3)
