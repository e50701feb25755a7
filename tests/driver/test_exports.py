"""The model is exported every so many steps, each time whole or not at all, and no step twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from longboat_crds.checkpoint import CheckpointSpec
from longboat_crds.reasons import Reason
from longboat_runtime.checkpoint.exports import is_due
from longboat_runtime.driver.outcome import RunOutcome
from tests.driver.fakes import Site, make_spec
from tests.driver.runs import crash_once_saved, finished, until

EVERY_TWO = {"export_every_steps": 2}


def exported(root: Path) -> dict[str, str]:
    """The weights of exports by name, hidden ones too."""
    paths = [*root.glob("exports/*/weights"), *root.glob("*export*/weights")]
    return {path.parent.name: path.read_text() for path in paths}


@pytest.mark.parametrize("last", [True, False])
def test_an_export_is_due_every_n_steps_but_not_where_the_last_one_is_written_anyway(last: bool) -> None:
    spec = CheckpointSpec(export=last, export_every_steps=3)
    assert [step for step in range(7) if is_due(step, 6, spec)] == ([3] if last else [3, 6])
    assert not is_due(3, 6, CheckpointSpec())


async def test_the_newest_exports_are_kept_and_are_those_of_their_steps(tmp_path: Path) -> None:
    kept = {"export_every_steps": 2, "keep_exports": 2, "every_steps": 1}
    site = await finished(tmp_path, steps=9, checkpoint=kept)
    assert site.trainer.exports == ["step-00000002", "step-00000004", "step-00000006", "step-00000008", "export"]
    weights = {step: (tmp_path / f"incarnations/1/step-{step:08d}/trainer/weights").read_text() for step in (6, 8, 9)}
    assert exported(tmp_path) == {"step-00000006": weights[6], "step-00000008": weights[8], "export": weights[9]}
    assert site.broker.status.checkpoint.export == "export"


async def test_without_an_export_at_the_end_the_last_step_has_one_of_its_own(tmp_path: Path) -> None:
    site = await finished(tmp_path, steps=4, checkpoint={**EVERY_TWO, "export": False})
    assert site.trainer.exports == ["step-00000002", "step-00000004"]
    assert site.broker.status.checkpoint.export == "exports/step-00000004"


async def test_an_export_is_in_the_status_before_the_end(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(checkpoint={**EVERY_TWO, "every_steps": 3}))
    driver = site.driver()
    running = asyncio.create_task(driver.run())
    told: list[str | None] = []
    publish = site.broker.publish
    site.broker.publish = lambda status: (told.append(status.checkpoint and status.checkpoint.export), publish(status))
    assert await running is RunOutcome.DONE
    assert "exports/step-00000004" in told
    assert told[-1] == "export"


async def test_a_step_that_is_exported_is_not_exported_again_by_the_next_driver(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(checkpoint=EVERY_TWO))
    driver = site.driver()
    crash_once_saved(site, step=3, saved=2)
    with pytest.raises(ExceptionGroup):
        await driver.run()
    assert exported(tmp_path).keys() == {"step-00000002"}
    assert await site.driver().run() is RunOutcome.DONE
    assert site.trainer.exports == ["step-00000004", "export"]
    assert exported(tmp_path).keys() == {"step-00000002", "step-00000004", "export"}


async def test_steps_that_are_trained_again_are_exported_again(tmp_path: Path) -> None:
    """The job went back to step 2: what is exported of step 4 must be what it continues with."""
    site = Site(tmp_path, make_spec(steps=6, checkpoint={**EVERY_TWO, "every_steps": 2}))
    driver = site.driver()
    crash_once_saved(site, step=5, saved=2)
    site.trainer.full = {2}
    with pytest.raises(ExceptionGroup):
        await driver.run()
    stale = tmp_path / "exports/step-00000004/weights"
    stale.write_text("of steps that are lost")
    assert await site.driver().run() is RunOutcome.DONE
    assert site.trainer.exports == ["step-00000004", "export"]
    assert stale.read_text() == (tmp_path / "incarnations/2/step-00000004/trainer/weights").read_text()


async def test_a_driver_that_ends_during_an_export_leaves_none_and_the_next_one_makes_it(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(checkpoint=EVERY_TWO))
    driver = site.driver()
    site.trainer.may_export.clear()
    running = asyncio.create_task(driver.run())
    await until(lambda: ".step-00000002.1.partial" in exported(tmp_path) and bool(site.checkpoints.newest()), running)
    running.cancel()
    await asyncio.wait([running])
    assert exported(tmp_path).keys() == {".step-00000002.1.partial"}
    assert await site.driver().run() is RunOutcome.DONE
    assert site.trainer.exports == ["step-00000002", "step-00000004", "export"]
    assert exported(tmp_path).keys() == {"step-00000002", "step-00000004", "export"}


async def test_training_continues_if_there_is_no_room_for_an_export(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(checkpoint={**EVERY_TWO, "every_steps": 10}))
    driver = site.driver()
    site.trainer.no_room = {1}
    told = []
    publish = site.broker.publish
    site.broker.publish = lambda status: (told.append(status.problem and status.problem.reason), publish(status))
    assert await driver.run() is RunOutcome.DONE
    assert Reason.CHECKPOINT_VOLUME_FULL in told
    assert exported(tmp_path).keys() == {"step-00000004", "export"}
