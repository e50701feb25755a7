"""The driver with environment pods: samples are made there, whatever happens to the pods."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from longboat_crds.environments import EnvironmentPoolSpec
from longboat_crds.reasons import Reason
from longboat_runtime.driver.demand import most_episodes, next_environment_demand
from longboat_runtime.driver.environment_pods import EnvironmentPods
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.episodes import fleet as fleet_module
from longboat_runtime.episodes.fleet import EpisodeFleet
from longboat_runtime.episodes.play import EpisodeConfig, EpisodeReport, EpisodeRequest
from longboat_runtime.episodes.protocol import EpisodePod, EpisodePods, EpisodeState
from longboat_runtime.rollout.protocol import RolloutFleet
from longboat_runtime.rollout.turn_router import TurnEngines
from longboat_runtime.rounds import events
from longboat_runtime.samples import FinishedSample, LostSample
from tests.driver.fakes import FakeFleet, Site, make_spec
from tests.driver.runs import crash_once_saved, history, part, trained
from tests.episodes.clusters import AnyTask, Engines, FakeCluster

CONFIG = EpisodeConfig({}, "policy", 4000, Path("socket"))


class PlayingActor:
    """Plays a sample as `fleet` makes it: its tokens are a function of its seed and the weights."""

    def __init__(self, name: str, site: Site, dice: random.Random) -> None:
        self.name, self._site = name, site
        self._inner = FakeFleet(site.store, dice)
        self._numbers: dict[Any, int] = {}

    async def start(self) -> None: ...

    async def update(self, table: TurnEngines) -> None: ...

    async def play(self, requests: Sequence[EpisodeRequest]) -> None:
        self._inner.version, self._inner.weights = self._site.fleet.version, self._site.fleet.weights
        for request in requests:
            self._numbers[request.sample.id] = request.number
            await self._inner.submit([request.sample])

    async def stop(self, numbers: Sequence[int]) -> None:
        ids = {number: sample for sample, number in self._numbers.items()}
        await self._inner.abort([ids[number] for number in numbers if number in ids])

    async def reports(self) -> list[EpisodeReport]:
        ended = await self._inner.finished()
        return [self._report(report) for report in ended if report.id in self._numbers]

    def _report(self, report: FinishedSample | LostSample) -> EpisodeReport:
        return EpisodeReport(self._numbers.pop(report.id), report, over=True)

    async def close(self) -> None:
        for task in self._inner.running.values():
            task.cancel()


class EpisodesSite(Site):
    """A job whose samples are played in two pods, `kills` of which die while they play."""

    kills = 0

    def open_episodes(self) -> EpisodePods:
        dice = random.Random(self.incarnation)
        self.cluster = FakeCluster(lambda name, config: PlayingActor(name, self, dice))
        for pod in ("a", "b"):
            self.cluster.add(pod, slots=3)
        engines = cast("RolloutFleet", Engines())
        self.episodes = EpisodeFleet({"games": CONFIG}, AnyTask(), engines, self.store, self.cluster)
        return self.episodes

    async def run(self) -> RunOutcome:
        driver = self.driver()
        job = asyncio.create_task(driver.run())
        killing = asyncio.create_task(self._kill())
        try:
            return await job
        finally:
            killing.cancel()
            await self.episodes.close()

    async def _kill(self) -> None:
        dice = random.Random(7)
        for _ in range(self.kills):
            pods = [pod for pod in "ab" if self._busy(pod)]
            while not pods:
                await asyncio.sleep(0)
                pods = [pod for pod in "ab" if self._busy(pod)]
            self.cluster.handles[dice.choice(pods)].dead.set()
            for _ in range(dice.randrange(50)):
                await asyncio.sleep(0)

    def _busy(self, pod: str) -> bool:
        handle = self.cluster.handles.get(pod)
        return handle is not None and not handle.dead.is_set() and bool(handle.actor._inner.running)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "_WATCH_SECONDS", 0.001)
    monkeypatch.setattr(fleet_module, "RETRY_SECONDS", 0.0)


async def test_pods_that_die_change_nothing_of_what_is_trained(tmp_path: Path) -> None:
    quiet = EpisodesSite(tmp_path / "quiet", make_spec())
    assert await quiet.run() is RunOutcome.DONE
    shaken = EpisodesSite(tmp_path / "shaken", make_spec())
    shaken.kills = 4
    assert await shaken.run() is RunOutcome.DONE
    assert shaken.trainer.weights == quiet.trainer.weights
    assert trained(shaken) == trained(quiet)
    lost = [event for event in history(shaken) if isinstance(event, events.Lost)]
    assert lost
    assert not [event for event in history(quiet) if isinstance(event, events.Lost)]


@pytest.mark.parametrize("policy", ["TailBatching", "BoundedAsync"])
async def test_every_prompt_is_trained_once_while_pods_die(tmp_path: Path, policy: str) -> None:
    site = EpisodesSite(tmp_path, make_spec(policy=policy))
    site.kills = 6
    assert await site.run() is RunOutcome.DONE
    steps = trained(site)
    assert [step for step, _ in steps] == [1, 2, 3, 4, 5]
    prompts = [sample.prompt for _, samples in steps for sample in samples]
    assert all(prompts.count(prompt) == 2 for prompt in set(prompts))


async def test_a_driver_that_resumes_plays_what_it_wants_with_the_same_seeds(tmp_path: Path) -> None:
    whole = EpisodesSite(tmp_path / "whole", make_spec())
    assert await whole.run() is RunOutcome.DONE
    broken = EpisodesSite(tmp_path / "broken", make_spec())
    driver = broken.driver()
    crash_once_saved(broken, step=3, saved=2)
    with pytest.raises(ExceptionGroup):
        await driver.run()
    await broken.episodes.close()
    assert await broken.run() is RunOutcome.DONE
    assert broken.trainer.weights == whole.trainer.weights


async def test_held_out_rows_are_played_too(tmp_path: Path) -> None:
    site = EpisodesSite(tmp_path, make_spec(evaluation={"every_steps": 5}))
    assert await site.run() is RunOutcome.DONE
    asked = [request for handle in site.cluster.handles.values() for request in handle.actor._inner.requests]
    assert {request.evaluation for request in asked} == {True, False}
    assert not site.fleet.requests


async def test_a_pool_without_pods_is_reported(tmp_path: Path) -> None:
    spec = make_spec().model_copy(update={"environment_pools": [EnvironmentPoolSpec(name="games")]})
    site = EpisodesSite(tmp_path, spec)
    pods = part(site.driver(), EnvironmentPods)
    pods._report(EpisodeState())
    assert not pods.status().problems, "the first pod is still waited for"
    pods._report(EpisodeState({"a": EpisodePod("games", False, 0)}, problems={"games": "no socket"}))
    [problem] = pods.status().problems
    assert (problem.reason, problem.field) == (Reason.NO_ENVIRONMENTS, "spec.environmentPools[0].replicas")
    assert "no socket" in problem.message
    pods._report(EpisodeState({"a": EpisodePod("games", True, 0)}))
    assert not pods.status().problems
    pods._report(EpisodeState())
    assert pods.status().problems
    await site.episodes.close()


@pytest.mark.parametrize(
    ("spec", "held_out", "most"),
    [
        ({}, 0, 4),
        ({"evaluation": {"every_steps": 5, "samples_per_prompt": 2}}, 1, 4),
        ({"evaluation": {"every_steps": 5, "samples_per_prompt": 2}}, 3, 6),
        ({"policy": "TailBatching"}, 0, 6),
        ({"policy": "BoundedAsync"}, 0, 8),
    ],
)
def test_pods_are_asked_for_by_what_is_played_at_once(spec: dict[str, Any], held_out: int, most: int) -> None:
    assert most_episodes(make_spec(**spec), held_out) == most


def test_a_demand_names_as_many_pods_as_episodes_need() -> None:
    pools = [EnvironmentPoolSpec(name="a", replicas=8, episodes_per_pod=4), EnvironmentPoolSpec(name="b", replicas=2)]
    state = EpisodeState({"x": EpisodePod("a", True, 3), "y": EpisodePod("a", True, 1), "z": EpisodePod("b", True, 0)})
    first = next_environment_demand(None, 3, pools, 10, state, {})
    assert (first.incarnation, first.number) == (3, 1)
    assert [(pool.name, pool.replicas, pool.give_first) for pool in first.pools or ()] == [
        ("a", 3, None),
        ("b", 1, None),
    ]
    assert next_environment_demand(first, 3, pools, 10, state, {}) is first
    drained = next_environment_demand(first, 3, pools, 10, state, {"a": ["y"]})
    assert (drained.number, (drained.pools or ())[0].drained) == (2, ["y"])


def test_only_pods_that_are_too_many_are_named_and_the_idle_ones_first() -> None:
    pools = [EnvironmentPoolSpec(name="a", replicas=8, episodes_per_pod=4)]
    pods = {name: EpisodePod("a", True, playing) for name, playing in {"v": 4, "w": 3, "x": 3, "y": 1, "z": 2}.items()}
    first = next_environment_demand(None, 3, pools, 10, EpisodeState(pods), {})
    assert (first.pools or ())[0].give_first == ["y", "z"]
    busier = EpisodeState(pods | {"y": EpisodePod("a", True, 4)})
    assert next_environment_demand(first, 3, pools, 10, busier, {}) is first, "what is played changes all the time"
    joined = next_environment_demand(first, 3, pools, 10, EpisodeState(pods | {"u": EpisodePod("a", True, 0)}), {})
    assert (joined.number, (joined.pools or ())[0].give_first) == (1, ["u", "y", "z"])
    gone = EpisodeState({name: pod for name, pod in busier.pods.items() if name != "z"} | {"u": pods["x"]})
    replaced = next_environment_demand(first, 3, pools, 10, gone, {})
    assert (replaced.number, (replaced.pools or ())[0].give_first) == (1, ["x", "w"])
