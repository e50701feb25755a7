"""What the keeper does about engines that refuse weights, can't get them, or die; engines are stand-ins without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
import ray
from ray.exceptions import RayActorError, RayTaskError

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_crds.rollout import PublicationMode
from longboat_runtime import departures
from longboat_runtime.rollout import handing_over, pods, weight_updates
from longboat_runtime.rollout import keeper as module
from longboat_runtime.rollout.engine import EngineConfig, EngineDead, TurnParsers, engine_config
from longboat_runtime.rollout.environment import NodeDevices
from longboat_runtime.rollout.fleet import RayRolloutFleet
from longboat_runtime.rollout.load import PodLoad
from longboat_runtime.rollout.member import engine_name, slots_of
from longboat_runtime.rollout.protocol import FleetState
from longboat_runtime.rollout.ray_cluster import RESOURCE, RayCluster, RolloutNode, death_cause, rollout_nodes
from longboat_runtime.rollout.turn_router import TurnEngines
from longboat_runtime.samples import (
    FinishedSample,
    FinishReason,
    LostSample,
    MovedSample,
    SampleId,
    SampleRequest,
    VersionSpan,
)
from longboat_runtime.weights.gate import FetchFailed, PublicationRefused
from longboat_runtime.weights.payload import StoredBucket
from longboat_runtime.weights.publication import WeightPublication
from tests.driver.fakes import make_spec
from tests.rollout.reference import request
from tests.support.waiting import eventually_async

Update = Callable[["Actor", WeightPublication], float]


class Method:
    """What Ray makes of an actor's method."""

    def __init__(self, call: Any) -> None:
        self.remote = call


class Actor:
    """An engine's actor: `update` says what comes of a publication. It dies when it is killed, or with `failed`."""

    submit: Method
    abort: Method
    refuse_turns: Method
    update_weights: Method

    def __init__(self, world: World, config: EngineConfig) -> None:
        self.world, self.config = world, config
        self.died = asyncio.get_running_loop().create_future()
        self.calibrated: list[float | None] = []
        self.submitted: list[SampleRequest] = []
        self.got_samples = asyncio.Event()
        self.took_turns = 0
        for name in (
            "start",
            "submit",
            "abort",
            "refuse_turns",
            "take_turns",
            "finished",
            "update_weights",
            "conclude_weights",
            "give_up_weights",
            "shutdown",
        ):
            setattr(self, name, Method(getattr(self, f"_{name}")))

    async def _start(self) -> None:
        self.world.starts.append(self.config.name)
        self.world.start(self)

    async def _submit(self, requests: list[SampleRequest]) -> list[SampleId]:
        self.submitted += requests
        self.got_samples.set()
        return []

    async def _abort(self, ids: list[SampleId]) -> None:
        pass

    async def _refuse_turns(self) -> None:
        pass

    async def _take_turns(self) -> None:
        self.took_turns += 1

    async def _finished(self) -> list[FinishedSample]:
        raise await asyncio.shield(self.died)

    async def _conclude_weights(self, number: int, checksum: str) -> bool:
        return False

    async def _give_up_weights(self, number: int, reason: str) -> None:
        pass

    async def _update_weights(self, number: int, publication: WeightPublication, calibrated: float | None) -> float:
        self.calibrated.append(calibrated)
        self.world.updates.append(self.config.name)
        return self.world.update(self, publication)

    async def _shutdown(self) -> None:
        self.world.shut_down.append(self.config.name)

    def die(self, error: Exception) -> None:
        if not self.died.done():
            self.died.set_result(error)


class Store:
    """It is told which engines are gone."""

    def __init__(self) -> None:
        self.refused: list[str] = []

    async def refuse(self, engine: str) -> None:
        self.refused.append(engine)


class World:
    """Rollout nodes and the engines in them. A node is the only one of its pod, unless `pods` names another pod for it."""

    def __init__(self) -> None:
        self.nodes = ["n0"]
        self.devices = 1
        self.store = Store()
        self.pods: dict[str, str] = {}
        self.actors: dict[str, Actor] = {}
        self.updates: list[str] = []
        self.shut_down: list[str] = []
        self.update: Update = lambda actor, publication: 0.01
        self.start: Callable[[Actor], None] = lambda actor: None
        self.starts: list[str] = []
        self.asking: list[str] = []
        self.free: list[str] = []
        self.freed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def listed(self) -> list[dict[str, Any]]:
        return [
            {
                "Alive": True,
                "NodeID": name,
                "NodeName": self.pods.get(name, name),
                "Resources": {RESOURCE: self.devices},
            }
            for name in self.nodes
        ]

    def let_go(self, pod: str) -> None:
        """Called in another thread."""
        self.free.append(pod)
        self._loop.call_soon_threadsafe(self.freed.set)

    def start_actor(self, config: EngineConfig, node: RolloutNode, *_: object) -> Actor:
        actor = self.actors[config.name] = Actor(self, config)
        return actor


@pytest_asyncio.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(ray, "nodes", made.listed)
    monkeypatch.setattr(ray, "kill", lambda actor: actor.die(RayActorError()))
    monkeypatch.setattr(RayCluster, "start", made.start_actor)
    monkeypatch.setattr(departures, "asking", lambda client: [*made.asking])
    monkeypatch.setattr(departures, "let_go", lambda client, pod: made.let_go(pod))
    for constant in ("WATCH_SECONDS", "RESTART_SECONDS"):
        monkeypatch.setattr(module, constant, 0.001)
    monkeypatch.setattr(pods, "NODE_SECONDS", 0.001)
    for constant in ("FETCH_SECONDS", "BACKOFF_SECONDS"):
        monkeypatch.setattr(weight_updates, constant, 0.001)
    return made


@pytest_asyncio.fixture
async def fleet(world: World) -> AsyncIterator[RayRolloutFleet]:
    made = RayRolloutFleet(make_spec(), store=world.store)  # type: ignore[arg-type]
    yield made
    await made.close()


def of_two_devices(world: World) -> RayRolloutFleet:
    """A fleet on nodes of two devices, with an engine on each at the start."""
    world.devices, spec = 2, make_spec()
    rollout = spec.rollout.model_copy(update={"engines_per_pod": 2})
    return RayRolloutFleet(spec.model_copy(update={"rollout": rollout}), store=world.store)  # type: ignore[arg-type]


class Payload:
    nbytes = 1
    checksum = "sum"
    trainer = ()

    def __len__(self) -> int:
        return 0


def publication(version: int) -> WeightPublication:
    return WeightPublication(version, Payload(), (1, 2), (-1.0,))


async def state_of(fleet: RayRolloutFleet, wanted: Callable[[FleetState], bool]) -> FleetState:
    state = FleetState()
    while not wanted(state):
        state = await fleet.changed(state)
    return state


def refuse(actor: Actor, _: WeightPublication) -> float:
    raise PublicationRefused(f"engine {actor.config.name}: log-probs differ by 0.3")


async def test_a_refused_engine_gets_the_weights_again(world: World, fleet: RayRolloutFleet) -> None:
    world.update = lambda actor, p: refuse(actor, p) if len(world.updates) == 1 else 0.01
    report = await fleet.publish(publication(1))
    assert (report.serving, dict(report.refused)) == (("n0/0",), {})
    assert world.updates == ["n0/0", "n0/0"]
    assert not world.shut_down


async def test_then_it_is_started_anew_and_serves(world: World, fleet: RayRolloutFleet) -> None:
    world.update = lambda actor, p: refuse(actor, p) if actor.config.name == "n0/0" else 0.01
    report = await fleet.publish(publication(1))
    assert report.serving == ()
    assert "differ by 0.3" in report.refused["n0/0"]
    state = await state_of(fleet, lambda state: bool(state.serving))
    assert (state.serving, dict(state.refused), state.deaths) == (("n0/0.1",), {}, 0), "a restart of ours is no death"
    assert world.updates == ["n0/0", "n0/0", "n0/0.1"]
    assert world.shut_down == ["n0/0"]


async def test_while_another_serves_it_is_tried_for_ever_and_the_job_goes_on(
    world: World, fleet: RayRolloutFleet
) -> None:
    world.nodes = ["n0", "n1"]
    world.update = lambda actor, p: refuse(actor, p) if actor.config.name.startswith("n0") else 0.01
    await fleet.wait_started(2)
    await fleet.publish(publication(1))
    await state_of(fleet, lambda state: any(int(name.partition(".")[2] or 0) >= 4 for name in state.refused))
    state = fleet._keeper.state
    assert state.serving == ("n1/0",)
    asked = request(0)
    await fleet.submit([asked])
    await world.actors["n1/0"].got_samples.wait()
    assert world.actors["n1/0"].submitted == [asked]


async def test_the_job_fails_once_none_serves_after_resend_and_restart(world: World, fleet: RayRolloutFleet) -> None:
    world.nodes = ["n0", "n1"]
    world.update = refuse
    await fleet.wait_started(2)
    await fleet.publish(publication(5))
    with pytest.raises(SpecProblem, match=r"differ by 0\.3") as failed:
        await fleet.finished()
    assert (failed.value.reason, failed.value.fatal) == (Reason.ENGINE_REFUSED, True)
    for slot in ("n0/0", "n1/0"):
        assert world.updates.count(slot) == 2, "sent again"
        assert f"{slot}.1" in world.updates, "and restarted"


async def test_weights_that_cannot_be_fetched_are_no_refusal(world: World, fleet: RayRolloutFleet) -> None:
    def unreachable(actor: Actor, _: WeightPublication) -> float:
        if len(world.updates) <= 5:
            raise FetchFailed(f"engine {actor.config.name} could not get version 1: bucket 3 of 4 can't be fetched")
        return 0.01

    world.update = unreachable
    report = await fleet.publish(publication(1))
    assert (report.serving, dict(report.refused)) == ((), {})
    state = fleet._keeper.state
    assert "bucket 3 of 4" in state.unreached["n0/0"]
    state = await state_of(fleet, lambda state: bool(state.serving))
    assert (state.serving, dict(state.unreached)) == (("n0/0",), {})
    assert world.updates == ["n0/0"] * 6
    assert fleet._keeper.members["n0/0"].slot.refusals == 0


async def test_what_ran_in_an_engine_whose_publication_is_given_up_is_lost(
    world: World, fleet: RayRolloutFleet
) -> None:
    """The trainer may be lost in the middle of one. The engine then serves nothing before the next."""
    await fleet.publish(publication(0))
    await fleet.submit([request(0)])
    actor, begun = world.actors["n0/0"], asyncio.Event()
    await actor.got_samples.wait()

    async def never(*_: Any) -> float:
        begun.set()
        return await asyncio.get_running_loop().create_future()

    actor.update_weights = Method(never)
    publishing = asyncio.create_task(fleet.publish(publication(1)))
    await begun.wait()
    publishing.cancel()
    [lost] = await fleet.finished()
    assert isinstance(lost, LostSample)
    assert "given up" in lost.reason
    assert fleet._keeper.state.serving == ()
    actor.update_weights = Method(actor._update_weights)
    assert (await fleet.publish(publication(1))).serving == ("n0/0",)


class DirectPayload(Payload):
    """Has a sender, which notes what becomes of its groups."""

    trainer = ("sender",)

    def __init__(self, ended: list[str]) -> None:
        self.ended = ended

    async def versions(self) -> list[dict[str, str]]:
        return [{"torch": "2"}]

    async def open_groups(self, key: str) -> dict[int, str]:
        return {0: "host:1"}

    async def join_groups(self, *_: Any) -> None: ...

    async def leave_groups(self, key: str) -> None:
        self.ended.append(key)


async def test_groups_of_a_pod_that_was_left_behind_are_made_anew(world: World) -> None:
    """Also if its engines then got the weights in another way."""
    spec = make_spec()
    rollout = spec.rollout.model_copy(update={"publication": PublicationMode.DIRECT})
    fleet = RayRolloutFleet(spec.model_copy(update={"rollout": rollout}), store=world.store)  # type: ignore[arg-type]
    ended: list[str] = []

    def fail_once(actor: Actor, _: WeightPublication) -> float:
        if len(world.updates) == 2:
            raise FetchFailed("a bucket hasn't come")
        return 0.01

    async def call_workers(method: str, *_: Any) -> list[Any]:
        return [{"torch": "2"} if method == "weight_versions" else None]

    world.update = fail_once
    world.start = lambda actor: setattr(actor, "call_workers", Method(call_workers))
    by_broadcasts = []
    await fleet.wait_started(1)
    for version in range(3):
        made = WeightPublication(version, DirectPayload(ended), (1, 2), (-1.0,))
        report = await fleet.publish(made)
        assert report.serving == ("n0/0",)
        by_broadcasts.append(report.direct)
    assert by_broadcasts == [1, 0, 1]
    assert len(ended) == 1
    assert fleet._keeper.state.fetches == 0, "the trainer needn't publish again"
    await fleet.close()


async def test_an_engine_that_gives_no_verdict_is_left_behind(
    world: World, fleet: RayRolloutFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has loaded all buckets, and then stands still."""

    async def never(*_: Any) -> Any:
        return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(handing_over, "VERDICT_SECONDS", 0.01)
    world.start = lambda actor: actor.__dict__.update(update_weights=Method(never), conclude_weights=Method(never))
    report = await fleet.publish(publication(0))
    assert report.serving == ()
    assert "no verdict" in fleet._keeper.state.unreached["n0/0"]


class ThreeBuckets(Payload):
    def __len__(self) -> int:
        return 3

    async def bucket(self, number: int) -> StoredBucket:
        return StoredBucket((), None)  # type: ignore[arg-type]


@pytest.mark.parametrize("stands_still", [False, True])
async def test_an_engine_has_its_time_for_each_bucket(
    world: World, fleet: RayRolloutFleet, monkeypatch: pytest.MonkeyPatch, stands_still: bool
) -> None:
    """All three are on their way at once, and are loaded one after another."""
    monkeypatch.setattr(handing_over, "BUCKET_SECONDS", 1.0)
    turn, never = asyncio.Lock(), asyncio.get_running_loop().create_future()
    loaded: list[int] = []

    async def take_weights(number: int, index: int, bucket: StoredBucket) -> None:
        async with turn:
            await asyncio.wait([never], timeout=None if stands_still and loaded else 0.4)
            loaded.append(index)

    async def update_weights(*_: Any) -> float:
        await eventually_async(lambda: len(loaded) == 3)
        return 0.01

    world.start = lambda actor: actor.__dict__.update(
        take_weights=Method(take_weights), update_weights=Method(update_weights)
    )
    report = await fleet.publish(WeightPublication(0, ThreeBuckets(), (1, 2), (-1.0,)))
    assert report.serving == (() if stands_still else ("n0/0",))
    assert loaded == ([0] if stands_still else [0, 1, 2])


async def test_a_restarted_engine_is_judged_by_the_calibration_of_the_first(
    world: World, fleet: RayRolloutFleet
) -> None:
    world.update = lambda actor, p: 0.02
    await fleet.publish(publication(0))
    world.update = lambda actor, p: 0.05
    world.actors["n0/0"].die(EngineDead("worker crashed"))
    await state_of(fleet, lambda state: state.serving == ("n0/0.1",))
    assert world.actors["n0/0.1"].calibrated == [0.02]
    assert fleet.calibrations == {"bfloat16/1": 0.02}, "the later measurement changes nothing"


async def test_calibrations_of_a_checkpoint_hold_for_the_first_engines(world: World, fleet: RayRolloutFleet) -> None:
    fleet.calibrate({"bfloat16/1": 0.015, "bfloat16/2": 0.5})
    await fleet.publish(publication(0))
    assert world.actors["n0/0"].calibrated == [0.015]


async def test_a_death_is_told_apart_from_the_loss_of_a_pod(world: World, fleet: RayRolloutFleet) -> None:
    world.nodes = ["n0", "n1"]
    await fleet.wait_started(2)
    await fleet.publish(publication(0))
    await fleet.submit([request(row) for row in range(2)])
    for name in ("n0/0", "n1/0"):
        await world.actors[name].got_samples.wait()
    of = {name: world.actors[name].submitted[0].id for name in ("n0/0", "n1/0")}
    world.nodes = ["n0"]
    world.actors["n1/0"].die(RayActorError())
    world.actors["n0/0"].die(RayActorError())
    lost: list[FinishedSample | LostSample] = []
    while len(lost) < 2:
        lost += await fleet.finished()
    assert {one.id: one.engine_died for one in lost if isinstance(one, LostSample)} == {
        of["n0/0"]: True,
        of["n1/0"]: False,
    }
    assert world.store.refused == ["n1/0", "n0/0"], "what they may still have sent comes too late"
    assert fleet._keeper.state.deaths == 1
    assert "n0/0" in fleet._keeper.state.last_death


async def test_an_abort_waits_until_the_engine_has_what_it_stops(world: World, fleet: RayRolloutFleet) -> None:
    """Ray runs a call whose arguments come late after one that was made later."""
    await fleet.publish(publication(0))
    actor, had = world.actors["n0/0"], asyncio.get_running_loop().create_future()

    async def late(requests: list[SampleRequest]) -> list[SampleId]:
        for _ in range(5):
            await asyncio.sleep(0)
        return await actor._submit(requests)

    async def abort(ids: list[SampleId]) -> None:
        had.set_result([one.id for one in actor.submitted])

    actor.submit, actor.abort = Method(late), Method(abort)
    asked = request(0)
    await fleet.submit([asked])
    await fleet.abort([asked.id])
    assert await had == [asked.id]


@pytest.mark.parametrize("call", ["submit", "abort"])
async def test_a_call_that_fails_ends_the_engine_which_counts_as_a_death(
    world: World, fleet: RayRolloutFleet, call: str
) -> None:
    await fleet.publish(publication(0))
    actor = world.actors["n0/0"]

    async def fail(_: object) -> None:
        raise RayActorError

    setattr(actor, call, Method(fail))
    asked = request(0)
    await fleet.submit([asked])
    await fleet.abort([asked.id])
    (lost,) = await fleet.finished()
    assert isinstance(lost, LostSample)
    assert (lost.id, lost.engine_died) == (asked.id, True)
    assert world.store.refused == ["n0/0"]
    await state_of(fleet, lambda state: state.serving == ("n0/0.1",))


async def test_engines_of_a_pods_old_and_new_ray_node_have_different_names(
    world: World, fleet: RayRolloutFleet
) -> None:
    """The old node is listed for a while after its end, and its slot tries to start engines."""
    await fleet.publish(publication(0))
    world.pods["n1"] = "n0"
    world.nodes = ["n0", "n1"]
    await state_of(fleet, lambda state: state.serving == ("n0/0", "n0/0.1"))
    world.actors["n0/0"].die(RayActorError())
    await state_of(fleet, lambda state: state.serving == ("n0/0.1", "n0/0.2"))


def test_engines_get_groups_of_devices_that_follow_each_other() -> None:
    node = RolloutNode("a", "p", NodeDevices(5))
    assert [slot.devices for slot in slots_of(node, 1, most=4)] == [(0,), (1,), (2,), (3,)]
    assert [slot.devices for slot in slots_of(node, 2, most=64)] == [(0, 1), (2, 3)]
    assert slots_of(node, 8, most=64) == []
    assert [engine_name("p", devices, 0) for devices in ((3,), (2, 3))] == ["p/3", "p/2-3"]
    assert engine_name("p", (2, 3), 4) == "p/2-3.4"


def test_only_living_nodes_with_devices_count() -> None:
    nodes = [
        {
            "NodeID": "a",
            "Alive": True,
            "Resources": {"longboat-rollout": 2.0, "GPU": 1.0},
            "Labels": {"longboat.dev/pod": "p"},
        },
        {"NodeID": "b", "Alive": False, "Resources": {"longboat-rollout": 2.0}, "Labels": {}},
        {"NodeID": "c", "Alive": True, "Resources": {"longboat-trainer": 1.0}, "Labels": {}},
        {"NodeID": "d", "Alive": True, "Resources": {"longboat-rollout": 1.0}, "Labels": {}, "NodeName": "host"},
    ]
    assert rollout_nodes(nodes) == {
        "a": RolloutNode("a", "p", NodeDevices(2, 1)),
        "d": RolloutNode("d", "host", NodeDevices(1)),
    }


async def test_a_pod_that_has_to_go_is_drained_and_gets_no_other_engine(world: World, fleet: RayRolloutFleet) -> None:
    """What runs there continues in the other pod, and the engines' end isn't a death."""
    world.nodes = ["n0", "n1"]
    await fleet.publish(publication(1))
    await state_of(fleet, lambda state: len(state.serving) == 2)
    asked = request(0)
    await fleet.submit([asked])
    engine = fleet._router.engines_of([asked.id]).popitem()[0]
    leaving, other = world.actors[engine], next(actor for name, actor in world.actors.items() if name != engine)
    await leaving.got_samples.wait()

    async def aborted(ids: list[SampleId]) -> None:
        spans = (VersionSpan(1, 0, 5),)
        part = FinishedSample(asked.id, len(asked.prompt_ids), 5, FinishReason.ABORT, spans, engine)
        fleet.finished_in(fleet._keeper.members[engine], [part])

    leaving.abort = Method(aborted)
    world.asking = [engine.split("/")[0]]
    (moved,) = await fleet.finished()
    assert moved == MovedSample(asked.id, (VersionSpan(1, 0, 5),), engine, other.config.name)
    await other.got_samples.wait()
    assert [one.begun for one in other.submitted] == [moved.spans]
    await world.freed.wait()
    assert world.free == world.asking
    world.nodes.remove(world.asking[0])
    leaving.die(RayActorError())
    state = await state_of(fleet, lambda state: len(state.serving) == 1)
    assert (state.deaths, len(world.actors)) == (0, 2)


async def test_a_pod_may_go_although_no_engine_is_left(world: World, fleet: RayRolloutFleet) -> None:
    """What ran there waits for the next pod."""
    await fleet.publish(publication(1))
    world.asking = ["n0"]
    await world.freed.wait()
    await fleet.submit([request(0)])
    world.nodes.append("n1")
    await state_of(fleet, lambda state: "n1/0" in state.serving)
    await world.actors["n1/0"].got_samples.wait()


async def test_a_pod_that_is_given_back_is_drained_and_serves_again_once_it_is_taken_back(
    world: World, fleet: RayRolloutFleet
) -> None:
    world.nodes = ["n0", "n1"]
    await fleet.publish(publication(1))
    await state_of(fleet, lambda state: len(state.serving) == 2)
    assert fleet.pods == {"n0": PodLoad(1, 0), "n1": PodLoad(1, 0)}
    fleet.release(["n1", "never-came"])
    state = await state_of(fleet, lambda state: state.drained == ("n1", "never-came"))
    assert state.pods == ("n0", "n1")
    await fleet.submit([request(row) for row in range(4)])
    await world.actors["n0/0"].got_samples.wait()
    assert fleet.pods == {"n0": PodLoad(1, 4), "n1": PodLoad(1, 0)}
    fleet.release([])
    await state_of(fleet, lambda state: not state.drained)
    await fleet.submit([request(row) for row in range(4, 8)])
    await world.actors["n1/0"].got_samples.wait()
    assert world.actors.keys() == {"n0/0", "n1/0"}, "its engine is the one that it had"


async def test_a_pod_that_is_taken_back_during_its_drain_goes_on(world: World, fleet: RayRolloutFleet) -> None:
    await fleet.publish(publication(1))
    await fleet.submit([request(0)])
    await world.actors["n0/0"].got_samples.wait()
    fleet.release(["n0"])
    fleet.release([])
    world.actors["n0/0"].got_samples.clear()
    await fleet.submit([request(1)])
    await world.actors["n0/0"].got_samples.wait()
    assert fleet._keeper.state.drained == ()


async def test_a_pod_that_joins_while_it_is_given_back_gets_no_engine_until_it_is_taken_back(
    world: World, fleet: RayRolloutFleet
) -> None:
    fleet.release(["n1"])
    await fleet.publish(publication(1))
    world.nodes = ["n0", "n1"]
    await state_of(fleet, lambda state: state.pods == ("n0", "n1"))
    assert world.actors.keys() == {"n0/0"}
    fleet.release([])
    await state_of(fleet, lambda state: state.serving == ("n0/0", "n1/0"))


async def test_an_engine_that_dies_in_a_pod_that_is_given_back_has_no_successor(
    world: World, fleet: RayRolloutFleet
) -> None:
    world.nodes = ["n0", "n1"]
    await fleet.publish(publication(1))
    await state_of(fleet, lambda state: len(state.serving) == 2)
    fleet.release(["n1"])
    world.actors["n1/0"].die(RayActorError())
    state = await state_of(fleet, lambda state: state.serving == ("n0/0",))
    assert (state.deaths, len(world.actors)) == (0, 2)
    fleet.release([])
    await state_of(fleet, lambda state: state.serving == ("n0/0", "n1/0.1"))


async def test_a_pod_that_was_away_during_a_reshape_gets_engines_of_the_new_size(world: World) -> None:
    fleet = of_two_devices(world)
    world.nodes = ["n0", "n1"]
    await fleet.publish(publication(1))
    await state_of(fleet, lambda state: len(state.serving) == 4)
    fleet.release(["n1"])
    assert (await fleet.reshape(2, one_by_one=False)).failure is None
    await state_of(fleet, lambda state: state.serving == ("n0/0-1", "n1/0", "n1/1"))
    fleet.release([])
    await state_of(fleet, lambda state: state.serving == ("n0/0-1", "n1/0-1"))
    await fleet.close()


async def test_a_pod_that_dies_in_a_reshape_does_not_fail_it(world: World) -> None:
    fleet = of_two_devices(world)
    world.nodes = ["n0", "n1"]
    await fleet.publish(publication(1))
    await state_of(fleet, lambda state: len(state.serving) == 4)

    def gone(actor: Actor, _: WeightPublication) -> float:
        if actor.config.name == "n1/0-1":
            world.nodes = ["n0", "n2"]
            actor.die(RayActorError())
            raise RayActorError
        return 0.01

    world.update = gone
    assert (await fleet.reshape(2, one_by_one=False)).failure is None
    await state_of(fleet, lambda state: state.serving == ("n0/0-1", "n2/0-1"))
    await fleet.close()


async def test_a_reshape_whose_weights_cannot_be_fetched_says_nothing_about_the_shape(world: World) -> None:
    fleet = of_two_devices(world)
    await fleet.publish(publication(1))
    await state_of(fleet, lambda state: len(state.serving) == 2)

    def unreachable(actor: Actor, _: WeightPublication) -> float:
        if actor.config.tensor_parallel == 2:
            raise FetchFailed("bucket 1 is gone")
        return 0.01

    world.update = unreachable
    done = await fleet.reshape(2, one_by_one=False)
    assert (done.tensor_parallel, done.failure, done.unfit) == (1, "bucket 1 is gone", False)
    await state_of(fleet, lambda state: len(state.serving) == 2)
    await fleet.close()


def unsupported(actor: Actor) -> None:
    problem = SpecProblem(Reason.MODEL_INVALID, "spec.model.path", f"{actor.config.name} can't start: no architecture")
    raise RayTaskError("start", "the traceback", problem).as_instanceof_cause()


async def test_what_a_person_has_to_change_fails_the_job_at_the_first_start(
    world: World, fleet: RayRolloutFleet
) -> None:
    world.start = unsupported
    with pytest.raises(SpecProblem, match="no architecture"):
        await fleet.wait_started(1)
    assert world.starts == ["n0/0"]
    assert fleet._keeper.state.deaths == 0


async def test_a_pod_where_engines_cannot_start_does_not_fail_a_job_whose_engines_have_started(
    world: World, fleet: RayRolloutFleet
) -> None:
    """Its own copy of the model is damaged, for one: spec and model can't be the cause."""
    await fleet.publish(publication(1))
    world.start = unsupported
    world.nodes = ["n0", "n1"]
    state = await state_of(fleet, lambda state: state.deaths >= 3)
    assert state.serving == ("n0/0",)
    assert "n1/0" in state.last_death
    assert state.last_death.endswith("can't start: no architecture")


async def test_another_start_is_tried_where_it_may_succeed(world: World, fleet: RayRolloutFleet) -> None:
    def start(actor: Actor) -> None:
        if len(world.starts) < 3:
            raise EngineDead("it can't start: CUDA out of memory. Tried to allocate 2.00 GiB.")

    world.start = start
    await fleet.wait_started(1)
    assert world.starts == ["n0/0", "n0/0.1", "n0/0.2"]
    state = fleet._keeper.state
    assert state.last_death == "engine n0/0.1 died: it can't start: CUDA out of memory. Tried to allocate 2.00 GiB."


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            'ray::EngineActor.start()\n  File "/e.py", line 1, in start\n    raise E\nValueError: it is too small\nsee the hint\n',
            "it is too small",
        ),
        ("The actor died unexpectedly.\n\tclass_name: EngineActor\n\tactor_id: 12\n", "The actor died unexpectedly."),
        ("", "EngineDead"),
    ],
)
def test_what_is_said_of_a_dead_engine_is_the_cause(text: str, line: str) -> None:
    assert death_cause(EngineDead(text)) == line


@pytest.fixture
def with_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines serve turns."""
    monkeypatch.setattr(module, "engine_config", lambda *each: replace(engine_config(*each), parsers=TurnParsers()))


async def test_recorders_learn_which_engines_serve_turns_once_all_have_the_weights(
    world: World, fleet: RayRolloutFleet, with_environments: None
) -> None:
    world.nodes = ["n0", "n1"]
    slow = asyncio.Event()

    async def updates(*_: Any) -> float:
        await slow.wait()
        return 0.01

    await fleet.wait_started(2)
    world.actors["n1/0"].update_weights = Method(updates)
    listening = asyncio.create_task(fleet.turn_engines(TurnEngines()))
    publishing = asyncio.create_task(fleet.publish(publication(1)))
    await eventually_async(lambda: fleet._turn_engines.engines)
    assert not listening.done()
    slow.set()
    await publishing
    table = await listening
    assert {*table.engines} == {"n0/0", "n1/0"}


async def test_a_drained_engine_takes_no_turns_and_is_empty_once_they_have_returned(
    world: World, fleet: RayRolloutFleet, with_environments: None
) -> None:
    returned = asyncio.Event()
    await fleet.publish(publication(1))
    table = await fleet.turn_engines(TurnEngines())
    assert {*table.engines} == {"n0/0"}
    actor = world.actors["n0/0"]
    actor.refuse_turns = Method(returned.wait)
    draining = asyncio.ensure_future(fleet.drain(["n0/0"]))
    table = await fleet.turn_engines(table)
    assert not table.engines
    assert not draining.done()
    fleet.undrain(["n0/0"])
    returned.set()
    await draining
    table = await fleet.turn_engines(table)
    assert {*table.engines} == {"n0/0"}
    assert actor.took_turns == 1


async def test_an_engine_that_dies_takes_no_turns_and_ends_its_drain(
    world: World, fleet: RayRolloutFleet, with_environments: None
) -> None:
    await fleet.publish(publication(1))
    table = await fleet.turn_engines(TurnEngines())
    actor = world.actors["n0/0"]

    async def dies() -> None:
        raise RayActorError

    actor.refuse_turns = Method(dies)
    await fleet.drain(["n0/0"])
    table = await fleet.turn_engines(table)
    assert not table.engines
    while "n0/0.1" not in table.engines:
        table = await fleet.turn_engines(table)


async def test_without_environments_nobody_asks_for_turns(world: World, fleet: RayRolloutFleet) -> None:
    await fleet.publish(publication(1))
    await fleet.drain(["n0/0"])
    assert world.actors["n0/0"].took_turns == 0
    assert fleet._turn_engines.number == 0
