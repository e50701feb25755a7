"""Checkpoints are copied at the step boundary and written in the background while the next steps run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longboat_crds.status import TrainingState
from longboat_runtime.checkpoint.files import FilesDamaged
from longboat_runtime.checkpoint.manifest import FileEntry
from longboat_runtime.checkpoint.store import CheckpointStore
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.driver.stages import Stage
from longboat_runtime.eventlog import EventLog
from longboat_runtime.samples import SampleId
from longboat_runtime.trainer.errors import TrainerLost
from longboat_runtime.trainer.protocol import ModelInfo, TrainReport, TrainRequest
from tests.driver.fakes import Site, make_spec
from tests.driver.runs import finished, manifests, saved_steps, trained, until
from tests.support.examples import examples


class Killed(BaseException):
    """Ends the driver's process as far as these tests go: it cleans nothing up."""


async def turns(count: int = 2000) -> None:
    """Lets everything that can happen do so."""
    for _ in range(count):
        await asyncio.sleep(0)


def holding(root: Path, **spec: Any) -> tuple[Site, asyncio.Task[RunOutcome]]:
    """A running driver whose trainer writes nothing until it may."""
    site = Site(root, make_spec(**spec))
    driver = site.driver()
    site.trainer.may_write.clear()
    return site, asyncio.create_task(driver.run())


def weights_of(root: Path) -> dict[int, str]:
    """The weights in complete checkpoints, by step."""
    found = sorted(root.glob("incarnations/*/*/manifest.json"))
    return {
        int(path.parent.name.removeprefix("step-")): (path.parent / "trainer" / "weights").read_text() for path in found
    }


async def test_steps_continue_while_a_checkpoint_is_written_and_the_next_checkpoint_waits(tmp_path: Path) -> None:
    whole = await finished(tmp_path / "whole", steps=6)
    site, running = holding(tmp_path / "held", steps=6)
    await until(lambda: Stage.CHECKPOINT in site.reporter.stages.active and site.step == 4, running)
    await turns()
    assert [request.step for request in site.trainer.requests] == [1, 2, 3, 4], (
        "step 4 is due, and step 2 is being written"
    )
    assert site.trainer.snapshots == whole.trainer.snapshots[:1]
    assert site.broker.status.training.stage == "checkpoint"
    site.trainer.may_write.set()
    assert await running is RunOutcome.DONE
    assert saved_steps(site.root) == [2, 4, 6]
    assert weights_of(site.root) == weights_of(whole.root), (
        "those of the step, not of the one that was trained meanwhile"
    )
    assert manifests(site.root)[0]["ledger"] == manifests(whole.root)[0]["ledger"]


async def test_what_is_known_of_a_checkpoint_stays_when_a_driver_resumes_from_it(tmp_path: Path) -> None:
    site = await finished(tmp_path, steps=2)
    before = site.broker.status
    assert before.checkpoint is not None
    assert before.checkpoint.export
    site.spec = make_spec(steps=3)
    driver = site.driver(previous=before)
    site.seconds = 3600.0
    running = asyncio.create_task(driver.run())
    await until(lambda: Stage.GENERATE in site.reporter.stages.active, running)
    assert site.broker.status.checkpoint == before.checkpoint
    assert await running is RunOutcome.DONE
    assert site.broker.status.checkpoint.step == 3


async def test_a_status_older_than_the_claim_changes_nothing(tmp_path: Path) -> None:
    """The API server was restored to a time before the last two steps, and before further starts that are on the claim."""
    site = await finished(tmp_path, steps=2)
    restored = site.broker.status
    for steps in (3, 4):
        site.spec = make_spec(steps=steps)
        assert await site.driver(previous=site.broker.status).run() is RunOutcome.DONE
    site.spec = make_spec(steps=5)
    site.incarnation += 36
    running = asyncio.create_task(site.driver(previous=restored).run())
    await until(lambda: Stage.GENERATE in site.reporter.stages.active, running)
    training, checkpoint = site.broker.status.training, site.broker.status.checkpoint
    assert (training.incarnation, training.step) == (40, 4)
    assert (checkpoint.incarnation, checkpoint.step) == (3, 4)
    assert await running is RunOutcome.DONE
    assert [step for step, _ in trained(site)] == [1, 2, 3, 4, 5]


async def test_a_checkpoint_is_reported_once_its_manifest_is_in_place(tmp_path: Path) -> None:
    site, running = holding(tmp_path)
    told: list[int] = []
    publish = site.broker.publish

    def noted(status: Any) -> None:
        if status.checkpoint:
            assert (tmp_path / status.checkpoint.path / "manifest.json").is_file()
            told.append(status.checkpoint.step)
        publish(status)

    site.broker.publish = noted
    await until(lambda: site.step == 3, running)
    assert told == []
    assert saved_steps(tmp_path) == []
    site.trainer.may_write.set()
    assert await running is RunOutcome.DONE
    assert list(dict.fromkeys(told)) == [2, 4, 5]


@pytest.mark.parametrize("every", [2, 5])
async def test_the_last_step_waits_for_what_is_written(tmp_path: Path, every: int) -> None:
    """With a checkpoint every second step, it waits for that of step 2 and then for its own."""
    site, running = holding(tmp_path, steps=3, checkpoint={"every_steps": every})
    await until(lambda: site.step == 3, running)
    await turns()
    assert site.broker.status.training.state is TrainingState.RUNNING
    site.trainer.may_write.set()
    assert await running is RunOutcome.DONE
    assert saved_steps(tmp_path)[-1] == 3


async def test_a_suspension_waits_for_what_is_written_and_saves_what_came_after(tmp_path: Path) -> None:
    whole = await finished(tmp_path / "whole")
    site, running = holding(tmp_path / "held")
    site.fleet.hang = {SampleId(1, 2, 0, 1)}
    await until(lambda: site.fleet.running.keys() == site.fleet.hang, running)
    assert site.step == 3
    site.broker.suspend()
    await turns()
    assert not running.done()
    site.trainer.may_write.set()
    assert await running is RunOutcome.SUSPENDED
    assert saved_steps(site.root) == [2, 3]
    assert await site.driver().run() is RunOutcome.DONE
    assert trained(site) == trained(whole)
    assert site.trainer.weights == whole.trainer.weights


async def test_a_suspension_right_after_a_checkpoint_writes_no_other(tmp_path: Path) -> None:
    site, running = holding(tmp_path)
    site.fleet.hang = {SampleId(0, 4, 0, 0)}
    await until(lambda: site.fleet.running.keys() == site.fleet.hang, running)
    assert site.step == 2
    site.broker.suspend()
    await turns()
    site.trainer.may_write.set()
    assert await running is RunOutcome.SUSPENDED
    assert (len(site.trainer.snapshots), site.trainer.writes, saved_steps(tmp_path)) == (1, 1, [2])


async def test_a_drain_saves_the_newest_step_once_and_training_goes_on(tmp_path: Path) -> None:
    whole = await finished(tmp_path / "whole", steps=5)
    site = Site(tmp_path / "drained", make_spec(steps=5, checkpoint={"every_steps": 1000}))
    driver = site.driver()
    site.fleet.hang = {SampleId(1, 2, 0, 1)}
    running = asyncio.create_task(driver.run())
    await until(lambda: site.fleet.running.keys() == site.fleet.hang, running)
    assert (site.step, saved_steps(site.root)) == (3, [])
    site.broker.drain("2026-01-01T00:00:00Z")
    await until(lambda: site.broker.status.checkpoint and site.broker.status.checkpoint.step == 3, running)
    assert site.broker.status.training.state is TrainingState.RUNNING
    site.broker.drain("2026-01-02T00:00:00Z")
    await turns()
    assert site.trainer.writes == 1, "nothing has come since"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert await site.driver().run() is RunOutcome.DONE
    assert saved_steps(site.root) == [3, 5]
    assert trained(site) == trained(whole)
    assert site.trainer.weights == whole.trainer.weights


async def test_a_drain_while_a_step_is_trained_saves_that_step_once_it_is_committed(tmp_path: Path) -> None:
    whole = await finished(tmp_path / "whole", steps=5, checkpoint={"every_steps": 1})
    site = Site(tmp_path / "drained", make_spec(steps=5, checkpoint={"every_steps": 1000}))
    driver, train = site.driver(), site.trainer.train

    async def drained(request: TrainRequest) -> TrainReport:
        if request.step == 3:
            site.broker.drain("2026-01-01T00:00:00Z")
            await turns()
            assert saved_steps(site.root) == [], "the trainer is no longer at step 2"
        return await train(request)

    site.trainer.train = drained
    assert await driver.run() is RunOutcome.DONE
    assert saved_steps(site.root) == [3, 5]
    assert weights_of(site.root).items() <= weights_of(whole.root).items()


@settings(deadline=None, max_examples=examples(20))
@given(moments=st.sets(st.integers(0, 400), max_size=4), every=st.integers(1, 3))
def test_a_drain_at_any_moment_saves_states_of_steps_only(moments: set[int], every: int) -> None:
    async def run(root: Path) -> None:
        whole = await finished(root / "whole", steps=4, checkpoint={"every_steps": 1, "keep": 9})
        site = Site(root / "drained", make_spec(steps=4, checkpoint={"every_steps": every, "keep": 9}))
        running = asyncio.create_task(site.driver().run())
        for turn in range(max(moments, default=0) + 1):
            if turn in moments:
                site.broker.drain(f"2026-01-01T00:00:{turn:03}Z")
            await asyncio.sleep(0)
        assert await running is RunOutcome.DONE
        assert weights_of(site.root).items() <= weights_of(whole.root).items()
        assert trained(site) == trained(whole)

    with TemporaryDirectory() as root:
        asyncio.run(run(Path(root)))


async def test_a_lost_trainer_is_loaded_from_the_checkpoint_that_is_being_written(tmp_path: Path) -> None:
    whole = await finished(tmp_path / "whole")
    site, running = holding(tmp_path / "held")
    site.trainer.lost = {3}
    await until(lambda: not site.trainer.lost, running)
    await turns()
    assert site.trainer.loads == 1
    site.trainer.may_write.set()
    assert await running is RunOutcome.DONE
    assert site.trainer.loads == 2
    assert site.trainer.weights == whole.trainer.weights
    assert len(site.fleet.requests) == len(whole.fleet.requests), "nothing is generated again"


async def test_a_lost_trainer_is_not_loaded_from_a_damaged_checkpoint(tmp_path: Path) -> None:
    """The next driver goes back to an older one."""
    whole = await finished(tmp_path / "whole", checkpoint={"every_steps": 1})
    site = Site(tmp_path / "damaged", whole.spec)
    driver, load = site.driver(), site.trainer.load

    async def damaged() -> ModelInfo:
        if site.trainer.loads == 1:
            weights = site.root / "incarnations" / "1" / "step-00000002" / "trainer" / "weights"
            weights.write_bytes(bytes(weights.stat().st_size))
        return await load()

    site.trainer.load, site.trainer.lost = damaged, {3}
    with pytest.raises(ExceptionGroup) as ended:
        await driver.run()
    assert ended.group_contains(FilesDamaged)
    assert await site.driver().run() is RunOutcome.DONE
    assert trained(site) == trained(whole)
    assert site.trainer.weights == whole.trainer.weights


async def test_a_trainer_that_is_lost_with_what_it_writes_sends_the_job_back_to_the_newest_manifest(
    tmp_path: Path,
) -> None:
    whole = await finished(tmp_path / "whole")
    site, running = holding(tmp_path / "held")
    site.trainer.may_write.set()
    dead, write = asyncio.Event(), site.trainer.write

    async def lost(directory: Path) -> Sequence[FileEntry]:
        entries = await write(directory)
        if site.trainer.writes == 2:
            await dead.wait()
            raise TrainerLost("a trainer rank failed")
        return entries

    site.trainer.write, site.trainer.lost = lost, {5}
    await until(lambda: not site.trainer.lost, running)
    dead.set()
    with pytest.raises(ExceptionGroup) as ended:
        await running
    assert ended.group_contains(TrainerLost)
    assert saved_steps(site.root) == [2]
    assert await site.driver().run() is RunOutcome.DONE
    assert trained(site) == trained(whole)
    assert site.trainer.weights == whole.trainer.weights


@pytest.mark.parametrize(
    ("part", "newest"),
    [("_begin", 2), ("write", 2), ("_finish", 2), ("_prune", 4)],
    ids=lambda value: str(value).strip("_"),
)
@pytest.mark.parametrize("after", [True, False], ids=["after it", "before it"])
async def test_a_driver_that_is_killed_while_it_writes_resumes_from_the_newest_manifest(
    tmp_path: Path, part: str, newest: int, after: bool
) -> None:
    """It dies in the checkpoint of step 4; the steps trained since the newest manifest are repeated, bit for bit."""
    whole = await finished(tmp_path / "whole", steps=6)
    site = Site(tmp_path / "killed", whole.spec)
    driver = site.driver()
    place = site.trainer if part == "write" else site.checkpoints
    setattr(place, part, killing(getattr(place, part), after=after))
    with pytest.raises(BaseExceptionGroup) as died:
        await driver.run()
    assert died.group_contains(Killed)
    found = CheckpointStore(site.root, 2, 2).newest()
    assert found is not None
    assert found.step == (4 if (part, after) == ("_finish", True) else newest)
    assert await site.driver(order=3).run() is RunOutcome.DONE
    assert trained(site) == trained(whole)
    assert site.trainer.weights == whole.trainer.weights


def killing(method: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
    """Like `method`, but the second call ends the process before or after its work."""
    calls = []

    def called() -> Any:
        calls.append(None)
        return len(calls) == 2

    def plain(*arguments: Any) -> Any:
        kill = called()
        if kill and not after:
            raise Killed
        result = method(*arguments)
        if kill:
            raise Killed
        return result

    async def awaited(*arguments: Any) -> Any:
        kill = called()
        if kill and not after:
            raise Killed
        result = await method(*arguments)
        if kill:
            raise Killed
        return result

    return awaited if asyncio.iscoroutinefunction(method) else plain


async def test_what_happens_while_a_checkpoint_is_written_is_not_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint has the evaluation of step 2, though the write begins only after the evaluation of step 3."""
    site = Site(tmp_path, make_spec(evaluation={"every_steps": 1}))
    driver, sync, begun, may = site.driver(), EventLog.sync, [], asyncio.Event()

    async def held(log: EventLog) -> None:
        if Stage.WRITE in site.reporter.stages.active and not begun:
            begun.append(log)
            await may.wait()
        await sync(log)

    monkeypatch.setattr(EventLog, "sync", held)
    running = asyncio.create_task(driver.run())
    await until(lambda: site.step == 4, running)
    may.set()
    assert await running is RunOutcome.DONE
    first = manifests(tmp_path)[0]
    assert (first["evaluated"]["step"], first["ledger"]["step"]) == (2, 2)


async def test_a_write_that_hangs_is_a_stage_of_its_own(tmp_path: Path) -> None:
    """The watchdog names it, while `status.training.stage` shows what the step is doing."""
    site, running = holding(tmp_path, stage_deadline_seconds=100)
    site.fleet.hang = {SampleId(0, 4, 0, 0)}
    await until(lambda: site.fleet.running.keys() == site.fleet.hang, running)
    assert site.reporter.stages.foremost is Stage.GENERATE
    site.seconds += 101
    assert site.reporter.stages.stuck(100).keys() == {Stage.GENERATE, Stage.WRITE}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_driver_that_is_stopped_reports_the_checkpoint_that_it_saved_last(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(checkpoint={"every_steps": 5}))
    driver = site.driver()
    site.fleet.hang = {SampleId(0, 2, 0, 0)}
    running = asyncio.create_task(driver.run())
    await until(lambda: site.step == 1 and site.fleet.running.keys() == site.fleet.hang, running)
    driver.stop()
    assert await running is RunOutcome.STOPPED
    assert site.broker.status.checkpoint.step == 1
