"""All environment pods behind one fleet, with actors that a test scripts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.episodes import fleet as fleet_module
from longboat_runtime.episodes.fleet import EpisodeFleet
from longboat_runtime.episodes.play import EpisodeConfig
from longboat_runtime.rollout.protocol import RolloutFleet
from longboat_runtime.rollout.turn_router import TurnEngines
from longboat_runtime.samples import (
    FinishedSample,
    FinishReason,
    FleetReport,
    LossCause,
    LostSample,
    SampleRequest,
    StartedSample,
)
from tests.driver.fakes import FakeStore
from tests.episodes.clusters import AnyTask, Engines, FakeCluster, ScriptedActor, sample_request
from tests.support.waiting import eventually_async

CONFIG = EpisodeConfig({}, "policy", 4000, Path("socket"))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "_WATCH_SECONDS", 0.01)
    monkeypatch.setattr(fleet_module, "RETRY_SECONDS", 0.05)


@dataclass
class World:
    """A fleet over scripted actors, and what it has reported."""

    pools: tuple[str, ...] = ("games",)
    reports: list[FleetReport] = field(default_factory=list)
    problem: SpecProblem | str | None = None

    def __post_init__(self) -> None:
        self.cluster = FakeCluster(lambda name, config: ScriptedActor(name, self.problem))
        self.engines, self.store = Engines(), FakeStore()
        configs = dict.fromkeys(self.pools, CONFIG)
        engines = cast("RolloutFleet", self.engines)
        self.fleet = EpisodeFleet(configs, AnyTask(*self.pools), engines, self.store, self.cluster)

    def actor(self, pod: str) -> ScriptedActor:
        actor: ScriptedActor = self.cluster.actors[pod]
        return actor

    def playing(self, pod: str) -> list[Any]:
        return [request.sample.id for request in self.actor(pod).playing.values()]

    async def joined(self, *pods: str) -> None:
        self.fleet.watch()
        for pod in pods:
            self.cluster.add(pod)
        await eventually_async(
            lambda: all((own := self.fleet.state.pods.get(pod)) is not None and own.serving for pod in pods)
        )

    async def until(self, *wanted: FleetReport | type) -> None:
        """Waits until the reports have these, or one of such a type."""
        while not all(any(one in (each, type(each)) for each in self.reports) for one in wanted):
            self.reports += await self.fleet.finished()

    def of(self, kind: type) -> list[Any]:
        return [report for report in self.reports if isinstance(report, kind)]


@asynccontextmanager
async def opened(*pools: str) -> AsyncIterator[World]:
    world = World(pools or ("games",))
    yield world
    await world.fleet.close()


def done(request: SampleRequest) -> FinishedSample:
    return FinishedSample(request.id, 2, 5, FinishReason.STOP, (), "pod", request.evaluation)


GROUP = [sample_request(0, index) for index in range(4)]


async def test_samples_begin_in_order_as_slots_are_free() -> None:
    async with opened() as world:
        await world.fleet.submit(GROUP)
        await world.joined("a")
        await eventually_async(lambda: world.playing("a") == [GROUP[0].id, GROUP[1].id])
        await world.until(StartedSample)
        assert [report.id for report in world.of(StartedSample)] == [GROUP[0].id, GROUP[1].id]
        actor = world.actor("a")
        actor.tell(actor.number(GROUP[1]), done(GROUP[1]))
        await eventually_async(lambda: world.playing("a") == [GROUP[0].id, GROUP[2].id])
        await world.until(done(GROUP[1]))
        assert [report.id for report in world.of(StartedSample)] == [GROUP[0].id, GROUP[1].id, GROUP[2].id]
        assert all(report.waited_seconds >= 0 for report in world.of(StartedSample))


async def test_what_a_lost_actor_plays_is_lost_and_held_up() -> None:
    async with opened() as world:
        await world.joined("a", "b")
        await world.fleet.submit(GROUP)
        await eventually_async(lambda: len(world.playing("a")) + len(world.playing("b")) == 4)
        lost, name = world.playing("a"), world.actor("a").name
        world.cluster.handles["a"].dead.set()
        await eventually_async(lambda: name in world.store.refused)
        await world.until(LostSample)
        assert sorted(report.id for report in world.of(LostSample)) == sorted(lost)
        assert {(report.cause, report.held_up) for report in world.of(LostSample)} == {(LossCause.ENVIRONMENT, True)}
        # The pod is there, and gets another actor.
        await world.fleet.submit([request for request in GROUP if request.id in lost])
        await eventually_async(lambda: world.actor("a").name != name and sorted(world.playing("a")) == sorted(lost))


async def test_a_pod_that_goes_takes_its_episodes_along() -> None:
    async with opened() as world:
        await world.joined("a")
        await world.fleet.submit(GROUP[:1])
        await eventually_async(lambda: world.playing("a"))
        del world.cluster.here["a/games"]
        await world.until(LostSample)
        assert world.fleet.state.pods == {}
        await world.fleet.submit(GROUP[:1])
        await world.joined("b")
        await eventually_async(lambda: world.playing("b") == [GROUP[0].id])


async def test_a_report_that_comes_while_its_pod_is_given_up_changes_nothing() -> None:
    async with opened() as world:
        await world.joined("a")
        await world.fleet.submit(GROUP[:1])
        await eventually_async(lambda: world.playing("a"))
        refused, refuse = asyncio.Event(), world.store.refuse

        async def slowly(player: str) -> None:
            await refused.wait()
            await refuse(player)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.store, "refuse", slowly)
            patch.setattr(world.cluster, "kill", lambda actor: None)
            actor = world.actor("a")
            del world.cluster.here["a/games"]
            await eventually_async(lambda: not world.fleet.state.pods)
            actor.tell(actor.number(GROUP[0]), done(GROUP[0]))
            await eventually_async(actor.nothing_to_report)
            refused.set()
            await world.until(LostSample)
        assert not world.of(FinishedSample)


async def test_aborted_samples_come_back_whether_they_wait_or_play() -> None:
    async with opened() as world:
        await world.joined("a")
        await world.fleet.submit(GROUP)
        await eventually_async(lambda: len(world.playing("a")) == 2)
        await world.fleet.abort([request.id for request in GROUP])
        await world.until(*(request.unstarted for request in GROUP))
        # Slots are free once nothing is left of what was stopped.
        later = sample_request(1)
        await world.fleet.submit([later])
        actor = world.actor("a")
        assert later.id not in world.playing("a")
        actor.tell(actor.stopped[0], None)
        await eventually_async(lambda: later.id in world.playing("a"))
        assert len(world.of(FinishedSample)) == 4


async def test_an_abort_that_comes_too_late_changes_nothing() -> None:
    async with opened() as world:
        await world.joined("a")
        await world.fleet.submit(GROUP[:1])
        await eventually_async(lambda: world.playing("a"))
        actor = world.actor("a")
        actor.tell(actor.number(GROUP[0]), done(GROUP[0]))
        await world.until(done(GROUP[0]))
        await world.fleet.abort([GROUP[0].id])
        await world.fleet.submit(GROUP[1:2])
        await eventually_async(lambda: world.playing("a") == [GROUP[1].id])
        assert world.of(FinishedSample) == [done(GROUP[0])]


async def test_a_deadline_is_reported_before_its_slot_is_free() -> None:
    async with opened() as world:
        await world.joined("a")
        await world.fleet.submit(GROUP[:3])
        await eventually_async(lambda: len(world.playing("a")) == 2)
        actor = world.actor("a")
        number = actor.number(GROUP[0])
        actor.tell(number, done(GROUP[0]), over=False)
        await world.until(done(GROUP[0]))
        assert GROUP[2].id not in world.playing("a")
        actor.tell(number, None)
        await eventually_async(lambda: GROUP[2].id in world.playing("a"))


async def test_a_released_pod_begins_nothing_and_is_drained_when_its_episodes_have_ended() -> None:
    async with opened() as world:
        await world.joined("a")
        await world.fleet.submit(GROUP)
        await eventually_async(lambda: len(world.playing("a")) == 2)
        world.fleet.release(["a", "never"])
        assert world.fleet.state.drained == ("never",)
        actor = world.actor("a")
        for request in GROUP[:2]:
            actor.tell(actor.number(request), done(request))
        await world.until(done(GROUP[0]), done(GROUP[1]))
        await eventually_async(lambda: world.fleet.state.drained == ("a", "never"))
        assert not actor.playing
        world.fleet.release([])
        await eventually_async(lambda: len(world.playing("a")) == 2)


async def test_a_pod_that_asks_to_go_may_once_nothing_plays_there() -> None:
    async with opened() as world:
        await world.joined("a")
        await world.fleet.submit(GROUP[:1])
        await eventually_async(lambda: world.playing("a"))
        world.cluster.leaving.add("a")
        await eventually_async(lambda: not world.fleet.state.pods["a"].serving)
        assert not world.cluster.gone
        actor = world.actor("a")
        actor.tell(actor.number(GROUP[0]), done(GROUP[0]))
        await eventually_async(lambda: world.cluster.gone == {"a"})


async def test_every_actor_learns_which_engines_draw_turns() -> None:
    async with opened() as world:
        world.engines.set(TurnEngines(1))
        await world.joined("a")
        await eventually_async(lambda: world.actor("a").tables[-1:] == [TurnEngines(1)])
        world.engines.set(TurnEngines(2))
        await world.joined("b")
        await eventually_async(
            lambda: [world.actor(pod).tables[-1:] for pod in "ab"] == [[TurnEngines(2)], [TurnEngines(2)]]
        )


async def test_an_environment_that_cannot_be_loaded_ends_all_waits() -> None:
    async with opened() as world:
        world.problem = SpecProblem(Reason.ENVIRONMENT_INVALID, "spec.environments[0].function", "It fails.")
        world.cluster.add("a")
        with pytest.raises(SpecProblem, match="It fails"):
            await world.fleet.ready()
        with pytest.raises(SpecProblem, match="It fails"):
            await world.fleet.finished()


async def test_a_pod_whose_server_does_not_answer_is_tried_again() -> None:
    async with opened() as world:
        world.problem = "no environments at its socket"
        world.cluster.add("a")
        world.fleet.watch()
        await eventually_async(lambda: world.fleet.state.problems == {"games": "no environments at its socket"})
        world.problem = None
        await world.fleet.ready()
        assert world.fleet.state.problems == {}


async def test_a_pod_whose_server_has_gone_plays_nothing_until_it_answers() -> None:
    async with opened() as world:
        await world.joined("a", "b")
        await world.fleet.submit(GROUP)
        await eventually_async(lambda: len(world.playing("a")) + len(world.playing("b")) == 4)
        broken, lost = world.actor("a"), world.playing("a")
        world.problem = "no environments at its socket"
        for number in [*broken.playing]:
            broken.lose(number, "the environments are gone", held_up=True)
        await world.until(LostSample)
        await world.fleet.submit([request for request in GROUP if request.id in lost])
        await eventually_async(lambda: "games" in world.fleet.state.problems)
        assert not world.fleet.state.pods["a"].serving
        assert not broken.playing, "what was lost waits for another pod"
        assert sorted(report.id for report in world.of(LostSample)) == sorted(lost), "and is lost once"
        world.problem = None
        await eventually_async(lambda: sorted(world.playing("a")) == sorted(lost))


async def test_pools_play_their_own_samples() -> None:
    async with opened("games", "tools") as world:
        world.cluster.add("a", "games", 8)
        world.cluster.add("b", "tools", 8)
        await world.fleet.ready()
        requests = [sample_request(row) for row in range(4)]
        await world.fleet.submit(requests)
        await eventually_async(lambda: (len(world.playing("a")), len(world.playing("b"))) == (2, 2))
        assert {sample.row % 2 for sample in world.playing("b")} == {1}
