"""What reward pools do is recorded, and a driver asks for the CPUs that they need."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longboat_crds.job import RLJobSpec
from longboat_crds.status import Demand, PoolCpu, RewardDemand, RewardGrant
from longboat_runtime.driver import reward_pools
from longboat_runtime.driver.broker import LocalBroker
from longboat_runtime.driver.demand import asked_cpus, expected_grades
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.driver.pool_loads import MOST_POINTS, PoolLoads
from longboat_runtime.metrics.record import read_records
from longboat_runtime.reward.cpus import PoolLoad
from longboat_runtime.rounds import events, measurements
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.records import RoundState, SampleState
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.rounds.view import View
from longboat_runtime.samples import PromptId
from longboat_runtime.trainer.protocol import TrainReport, TrainRequest
from tests.driver.fakes import FakeRewards, FakeStore, Site, make_spec
from tests.driver.runs import finished, held, history, trained
from tests.support.waiting import eventually_async

BUSY, IDLE = PoolLoad(asked=40, at_once=2, queue_seconds=9.0), PoolLoad()


def pools_spec(**more: Any) -> RLJobSpec:
    """Two pools of 8 graders that share 4 CPUs; the second one grades odd rows only."""
    value = make_spec(**more).model_dump(mode="json", by_alias=True, exclude_none=True)
    value["dataset"]["columns"] = {"domain": "parity"}
    value["rewards"] = [
        {"name": "main", "function": "rewards:main", "pool": "math"},
        {"name": "tests", "function": "rewards:tests", "pool": "code", "domains": ["odd"]},
    ]
    value["rewardPools"] = [{"name": "math", "gradersPerPod": 8}, {"name": "code", "gradersPerPod": 8}]
    value["rewardCpu"] = {"total": "4"}
    return RLJobSpec.model_validate(value)


def granted(answers: int | None = None, **cpus: str) -> RewardGrant:
    return RewardGrant(answers=answers, pools=[PoolCpu(name=name, cpu=cpu) for name, cpu in cpus.items()])


def demand(site: Site) -> RewardDemand | None:
    found = site.broker.status.demand
    return found.reward if found is not None else None


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes seconds takes little; demands may follow each other at once."""
    monkeypatch.setattr(reward_pools, "LOOK_SECONDS", 0.002)
    monkeypatch.setattr(reward_pools, "ASK_SECONDS", 0.0)


def calls(monkeypatch: pytest.MonkeyPatch, name: str) -> Callable[[], int]:
    """How often the driver has called this function of `reward_pools`."""
    count, real = [0], getattr(reward_pools, name)

    def counted(*arguments: Any) -> Any:
        count[0] += 1
        return real(*arguments)

    monkeypatch.setattr(reward_pools, name, counted)
    return lambda: count[0]


@pytest.mark.usefixtures("quickly")
async def test_a_pool_that_waits_is_given_what_another_does_not_need(tmp_path: Path) -> None:
    site = Site(tmp_path, pools_spec())
    async with held(site) as until:
        site.broker.grant_cpus(granted(math="2", code="2"))
        site.rewards.loads = {"math": IDLE, "code": BUSY}
        await until(lambda: demand(site) is not None)
        first = demand(site)
        assert first is not None
        assert (first.incarnation, first.number) == (1, 1)
        assert sum(asked_cpus(first).values()) <= 4000
        assert asked_cpus(first)["code"] > 3000
        assert first.reason is not None
        assert first.reason.startswith("code gets")
        assert all(pool.reason for pool in first.pools or ())
        site.broker.grant_cpus(granted(1, math="300m", code="3700m"))
        site.rewards.loads = {"math": replace(BUSY, asked=4000), "code": IDLE}
        await until(lambda: demand(site) != first)
        second = demand(site)
        assert second is not None
        assert second.number == 2
        assert asked_cpus(second)["math"] > 3000
        assert site.broker.status.demand is not None
        assert site.broker.status.demand.rollout is not None, "both demands stand side by side"
    told = [body for body in history(site) if isinstance(body, measurements.CpusAsked | measurements.CpusGranted)]
    assert Counter(type(body) for body in told) == {measurements.CpusAsked: 2, measurements.CpusGranted: 2}
    assert told[0].pools == {"math": 2.0, "code": 2.0}
    metrics = read_records(tmp_path)[-1].metrics
    assert metrics["reward/pools/math/cpus"] == 0.3
    assert metrics["reward/pools/code/changes_asked"] == 2


@pytest.mark.usefixtures("quickly")
async def test_a_demand_that_was_not_followed_is_not_repeated_but_withdrawn_once_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, considered = Site(tmp_path, pools_spec()), calls(monkeypatch, "divide")
    async with held(site) as until:
        site.broker.grant_cpus(granted(math="2", code="2"))
        site.rewards.loads = {"math": IDLE, "code": BUSY}
        await until(lambda: demand(site) is not None)
        first = demand(site)
        site.broker.grant_cpus(granted(1, math="2", code="2"))
        before = considered()
        await until(lambda: considered() >= before + 3)
        assert demand(site) == first
        site.rewards.loads = {"math": IDLE, "code": IDLE}
        await until(lambda: demand(site) != first)
        last = demand(site)
        assert last is not None
        assert (last.number, asked_cpus(last)) == (2, {"math": 2000, "code": 2000})


@pytest.mark.usefixtures("quickly")
async def test_a_driver_that_starts_again_starts_from_what_is_granted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for nothing while that suits the load, whatever the spec's first division would be."""
    site, considered = Site(tmp_path, pools_spec()), calls(monkeypatch, "divide")
    async with held(site) as until:
        site.broker.grant_cpus(granted(math="100m", code="3900m"))
        site.rewards.loads = {"math": IDLE, "code": BUSY}
        await until(lambda: considered() >= 3)
        assert demand(site) is None
        site.rewards.loads = {"math": BUSY, "code": IDLE}
        await until(lambda: demand(site) is not None)


@pytest.mark.usefixtures("quickly")
async def test_without_a_grant_nothing_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_pools, "LOOK_SECONDS", 0.0)
    site = Site(tmp_path, pools_spec())
    async with held(site):
        site.rewards.loads = {"math": IDLE, "code": BUSY}
        for _ in range(100):
            await asyncio.sleep(0)
        assert demand(site) is None
    assert not [body for body in history(site) if isinstance(body, measurements.CpusAsked)]
    waiting = asyncio.create_task(LocalBroker(1).granted_cpus(None))
    await asyncio.sleep(0)
    assert not waiting.done(), "pools of one machine share its CPUs"
    waiting.cancel()


@pytest.mark.usefixtures("quickly")
async def test_without_a_total_nothing_is_asked_for(tmp_path: Path) -> None:
    site = Site(tmp_path, pools_spec().model_copy(update={"reward_cpu": None}))
    async with held(site):
        site.broker.grant_cpus(granted(math="2", code="2"))
        site.rewards.loads = {"math": IDLE, "code": BUSY}
        for _ in range(100):
            await asyncio.sleep(0)
    assert demand(site) is None
    assert not [body for body in history(site) if isinstance(body, measurements.CpusAsked | measurements.CpusGranted)]


@pytest.mark.usefixtures("quickly")
async def test_moves_change_nothing_that_is_trained(tmp_path: Path) -> None:
    """The same samples, weights and ledger as without any, although CPUs move in every step."""
    spec = pools_spec()
    still = Site(tmp_path / "still", spec)
    assert await still.driver().run() is RunOutcome.DONE
    moving = Site(tmp_path / "moving", spec)
    driver = moving.driver()
    moving.rewards.loads = {"math": IDLE, "code": BUSY}
    moving.broker.grant_cpus(granted(math="2", code="2"))
    train, moves = moving.trainer.train, [0]

    async def moved(request: TrainRequest) -> TrainReport:
        """Grants what is asked for, and makes the other pool the busy one."""
        asked = await eventually_async(lambda: demand(moving), lambda asked: asked and asked.number != moves[0])
        assert asked is not None
        moves[0] = asked.number
        moving.broker.grant_cpus(granted(asked.number, **{pool.name: pool.cpu for pool in asked.pools or ()}))
        loads = moving.rewards.loads
        moving.rewards.loads = {"math": loads["code"], "code": loads["math"]}
        return await train(request)

    moving.trainer.train = moved  # type: ignore[method-assign]
    assert await driver.run() is RunOutcome.DONE
    assert len([body for body in history(moving) if isinstance(body, measurements.CpusAsked)]) >= 5
    assert trained(moving) == trained(still)
    assert moving.trainer.weights == still.trainer.weights


# --- What is expected ---------------------------------------------------------------------------------------------


def opened(racing: bool, prompts: int, samples: int) -> Ledger:
    """A round of so many prompts with so many samples each, all of which run."""
    ledger = Ledger(2, 5)
    ids = tuple(PromptId(0, row) for row in range(prompts))
    bodies = [
        events.Started(0),
        events.PublishStarted(0),
        events.Published(0),
        events.Drawn(0, ids),
        events.RoundOpened(1, RoundKind.SHORT, 0, racing),
        *(events.Launched(1, prompt, 0, samples) for prompt in ids),
    ]
    for seq, body in enumerate(bodies, 1):
        assert ledger.apply(events.Event(seq, 1, 0.0, body)), body
    assert ledger.rounds[1].state is RoundState.OPEN
    return ledger


def odd(prompt: PromptId) -> tuple[str, ...]:
    return ("math", "code") if prompt.row % 2 else ("math",)


def test_every_response_that_runs_is_expected_by_the_pools_of_its_domain() -> None:
    assert expected_grades(View(opened(False, 4, 2)), 4, odd) == {"math": 8.0, "code": 4.0}


def test_of_a_group_and_of_a_race_only_what_will_count_is_expected() -> None:
    assert expected_grades(View(opened(False, 2, 3)), 2, odd) == {"math": 4.0, "code": 2.0}
    assert expected_grades(View(opened(True, 4, 2)), 2, odd) == {"math": 4.0, "code": 2.0}


def test_what_has_ended_is_no_longer_expected() -> None:
    ledger = opened(False, 1, 2)
    for record in ledger.groups[PromptId(0, 0)].samples[:1]:
        record.state = SampleState.GENERATED
    assert expected_grades(View(ledger), 1, odd) == {"math": 1.0}


# --- What pools did -----------------------------------------------------------------------------------------------


async def test_what_pools_did_belongs_to_the_round_in_which_they_did_it() -> None:
    rewards, now = FakeRewards(FakeStore()), [100.0]
    loads = PoolLoads(rewards, lambda: now[0])

    def at(second: float, load: PoolLoad) -> None:
        now[0], rewards.loads = 100.0 + second, {"code": load}

    at(0, PoolLoad(arrived=5, graded=5, cpu_seconds=1.0, at_once=2))
    loads.begin(1)
    at(2, PoolLoad(asked=6, at_once=2, queue_seconds=1.5, arrived=11, graded=5, cpu_seconds=1.0))
    loads._sample_loads()
    at(9, PoolLoad(arrived=11, graded=11, cpu_seconds=4.0, at_once=2))
    measured = loads.finish(1)
    assert measured == measurements.RoundGraded(
        1, {"code": measurements.PoolGrading(6, 6, 3.0, 4, 1.5, ((0.0, 0), (2.0, 6), (9.0, 0)))}
    )
    event = events.Event(1, 1, 0.0, measured)
    assert events.LogEntry.from_json(event.to_json()) == event
    assert loads.finish(1) is None, "it is told once"


async def test_the_course_of_a_long_round_has_few_points_from_its_beginning_to_its_end() -> None:
    rewards, now = FakeRewards(FakeStore()), [0.0]
    loads = PoolLoads(rewards, lambda: now[0])
    rewards.loads = {"code": PoolLoad()}
    loads.begin(1)
    for second in range(1, 10_001):
        now[0], rewards.loads = float(second), {"code": PoolLoad(asked=second)}
        loads._sample_loads()
    measured = loads.finish(1)
    assert measured is not None
    points = measured.pools["code"].asked
    assert MOST_POINTS / 4 <= len(points) <= MOST_POINTS + 1
    assert points[0] == (0.0, 0)
    assert points[-1] == (10_000.0, 10_000)
    gaps = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(points)]
    assert max(gaps[:-1]) <= 10_000 / (MOST_POINTS / 4)


async def test_a_round_whose_pools_say_nothing_is_not_told(tmp_path: Path) -> None:
    site = await finished(tmp_path, steps=1)
    assert not [body for body in history(site) if isinstance(body, measurements.RoundGraded)]


async def test_every_step_tells_what_its_pools_did(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(steps=2))
    driver = site.driver()
    grade = site.rewards.grade
    site.rewards.loads = {"default": PoolLoad()}

    async def counted(*asked: Any, **more: Any) -> Any:
        before = site.rewards.loads["default"]
        site.rewards.loads = {"default": replace(before, arrived=before.arrived + 1, graded=before.graded + 1)}
        return await grade(*asked, **more)

    site.rewards.grade = counted  # type: ignore[method-assign]
    assert await driver.run() is RunOutcome.DONE
    told = [body for body in history(site) if isinstance(body, measurements.RoundGraded)]
    assert [(body.round, body.pools["default"].graded) for body in told] == [(1, 4), (2, 4)]
    metrics = read_records(tmp_path)[-1].metrics
    assert metrics["reward/pools/default/graded"] == metrics["reward/pools/default/arrived"] == 4
    assert metrics["reward/pools/default/cpu_seconds/mean"] == 0.0
    assert "reward/pools/default/cpus" not in metrics, "nothing moves"


def test_a_demand_is_part_of_the_status_of_its_own_accord() -> None:
    asked = RewardDemand(incarnation=1, number=1)
    assert Demand.model_validate(Demand(reward=asked).to_json()).reward == asked
