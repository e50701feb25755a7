"""Observers see the events that they ask for, are waited for, and end the run if they fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from longboat_crds.reasons import Reason
from longboat_runtime.driver import shape_plan
from longboat_runtime.driver.batch import Batch
from longboat_runtime.driver.context import Context
from longboat_runtime.driver.observer import Observer
from longboat_runtime.driver.observers import OBSERVERS
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.metrics.record import read_records
from longboat_runtime.rollout.parallelism import Bounds
from longboat_runtime.rounds import events, measurements
from longboat_runtime.rounds.events import Entry
from longboat_runtime.rounds.records import GroupRecord
from longboat_runtime.samples import PromptId, SampleId, SampleRequest, StartedSample
from longboat_runtime.status_fragment import Problems, StatusFragment
from tests.driver.fakes import Crash, FakeFleet, Site, make_spec
from tests.driver.runs import history, trained, with_loads
from tests.driver.test_reshapes import ADAPTIVE, TimedSite


class Noted(Observer):
    """Notes what it is called with."""

    watches = (events.Launched, events.GroupDeferred, events.StepCommitted, measurements.RoundMeasured)

    def __init__(self, context: Context) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.before: dict[PromptId, GroupRecord] = {}
        self._problems = Problems(context.news)
        self._problems.put(Reason.LENGTH_BIAS, "spec.rounds", "as a test says")

    def on(self, entry: Entry, before: GroupRecord | None) -> None:
        self.calls.append(("on", entry.body))
        if before is not None:
            self.before[before.prompt] = before

    async def before_commit(self, round_: int, batch: Batch) -> None:
        await asyncio.sleep(0)
        self.calls.append(("commit", round_, len(batch.records)))

    async def before_publication(self, version: int) -> None:
        self.calls.append(("publication", version))

    async def before_round(self, version: int) -> None:
        self.calls.append(("round", version))

    async def metrics(self, step: int) -> Mapping[str, float]:
        return {"test/step": float(step)}

    def status(self) -> StatusFragment:
        return StatusFragment(problems=self._problems.present)

    async def close(self) -> None:
        self.calls.append(("close",))


async def test_an_observer_sees_what_it_asked_for(tmp_path: Path) -> None:
    site = with_loads(Site(tmp_path, make_spec(policy="TailBatching", prompt_overcommit=2.0, steps=4)))
    made: list[Noted] = []

    def note(context: Context) -> Noted:
        made.append(Noted(context))
        return made[0]

    site.observers = (*OBSERVERS, note)
    assert await site.driver().run() is RunOutcome.DONE
    (noted,) = made
    seen = [call[1] for call in noted.calls if call[0] == "on"]
    assert seen == [body for body in history(site) if isinstance(body, Noted.watches)]
    assert {type(body) for body in seen} == {*Noted.watches}
    for body in seen:
        if isinstance(body, events.GroupDeferred):
            assert noted.before[body.prompt].prompt == body.prompt, "as it was: the ledger has forgotten the group"
    order = [call if call[0] != "on" else ("on", type(call[1])) for call in noted.calls]
    commit = order.index(("on", events.StepCommitted))
    assert order.index(("commit", 1, 4)) < commit < order.index(("publication", 1)) < order.index(("round", 1))
    assert order[-1] == ("close",)
    assert [record.metrics["test/step"] for record in read_records(tmp_path)] == [0, 1, 2, 3, 4]
    assert site.broker.status.problem.message == "as a test says"


async def test_data_stays_while_an_observer_holds_it(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(steps=3))
    kept: list[set[SampleId]] = []

    class Holding(Observer):
        watches = (events.Generated, events.StepCommitted)

        def __init__(self, context: Context) -> None:
            self._data, self._samples = context.data, list[SampleId]()

        def on(self, entry: Entry, before: GroupRecord | None) -> None:
            match entry.body:
                case events.Generated(sample=sample) if not kept:
                    self._data.hold([sample])
                    self._samples.append(sample)
                case events.StepCommitted(step=3):
                    kept.append({*self._samples} & site.store.samples.keys())
                    self._data.release(self._samples)

    site.observers = (*OBSERVERS, Holding)
    assert await site.driver().run() is RunOutcome.DONE
    first = {sample for _, samples in trained(site)[:2] for sample in samples}
    assert kept[0] >= first, "they were trained and would have been deleted two steps ago"
    assert not site.store.samples


def failing(
    kind: Callable[[Context], Observer], name: str, watched: type | None = None
) -> Callable[[Context], Observer]:
    """Makes an observer whose method fails: the first time, or for the first entry of a type."""

    def make(context: Context) -> Observer:
        observer = kind(context)
        method = getattr(observer, name)

        def fail(*arguments: Any) -> Any:
            if watched is None or isinstance(arguments[0].body, watched):
                raise Crash(f"{type(observer).__name__}.{name}")
            return method(*arguments)

        setattr(observer, name, fail)
        return observer

    return make


class StartingSite(TimedSite):
    """Its samples start when they are submitted, as episodes do that find a slot free."""

    def open_fleet(self, order: int) -> FakeFleet:
        fleet = super().open_fleet(order)
        submit = fleet.submit

        async def starting(requests: Sequence[SampleRequest]) -> None:
            await submit(requests)
            for request in requests:
                fleet.done.put_nowait(StartedSample(request.id, 0.0, request.evaluation))

        fleet.submit = starting  # type: ignore[method-assign]
        return fleet


def busy_site(root: Path, policy: str) -> Site:
    """A job with an entry of each type that an observer watches."""
    spec = make_spec(
        policy=policy, steps=5, checkpoint={"every_steps": 1}, evaluation={"every_steps": 2}, samples={"every_steps": 1}
    )
    rollout = spec.rollout.model_copy(update={"parallelism": ADAPTIVE})
    return with_loads(StartingSite(root, spec.model_copy(update={"rollout": rollout})))


# Its engine dies once in each run.
LOST = SampleId(0, 0, 0, 0)

CASES = [
    *((kind, "on", watched) for kind in OBSERVERS if isinstance(kind, type) for watched in kind.watches),  # type: ignore[attr-defined]
    *(
        (kind, name, None)
        for kind in OBSERVERS
        for name in ("before_commit", "before_publication", "before_round", "metrics")
    ),
]


def name_of(case: Sequence[Any]) -> str:
    return "-".join(getattr(part, "__name__", str(part)) for part in case if part is not None)


@pytest.mark.parametrize("case", CASES, ids=name_of)
async def test_a_job_whose_observer_fails_ends_and_repeats_the_same_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: tuple[Any, str, type | None]
) -> None:
    """As one whose driver is killed there: nothing is saved on the way out."""
    monkeypatch.setattr(shape_plan, "bounds_of", lambda job: Bounds((1, 2, 4), 1))
    kind, name, watched = case
    policy = "TailBatching" if watched in (events.GroupDeferred, events.Stopped) else "Synchronous"
    whole, site = busy_site(tmp_path / "whole", policy), busy_site(tmp_path / "broken", policy)

    async def run(each: Site) -> None:
        driver = each.driver()
        each.fleet.shortest_first = True
        each.fleet.lose[LOST] = 1
        each.rewards.errors = {PromptId(0, 1)}
        assert await driver.run() is RunOutcome.DONE

    await run(whole)
    site.observers = tuple(failing(each, name, watched) if each is kind else each for each in OBSERVERS)
    with pytest.raises(ExceptionGroup) as failed:
        await run(site)
    assert failed.group_contains(Crash)
    site.observers = OBSERVERS
    await run(site)
    assert trained(site) == trained(whole)
    assert site.trainer.weights == whole.trainer.weights
