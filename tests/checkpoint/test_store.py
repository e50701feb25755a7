import asyncio
import errno
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import groupby, product
from pathlib import Path

import pytest

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.checkpoint.files import FilesDamaged
from longboat_runtime.checkpoint.manifest import FileEntry
from longboat_runtime.checkpoint.store import CheckpointStore
from tests.support.checkpoints import bytes_read, described

SCRIPT = "tests.checkpoint.crash_points"


def write(directory: Path, content: bytes = b"0123456789" * 100) -> None:
    directory.mkdir()
    (directory / "weights").write_bytes(content)


async def write_model(directory: Path) -> Sequence[FileEntry]:
    write(directory)
    return described(directory)


async def saved(root: Path, *steps: int, incarnation: int = 1, keep: int = 2) -> CheckpointStore:
    store = CheckpointStore(root, keep, incarnation)
    for step in steps:
        await store.save(step, {"ledger": {"step": step}}, write_model)
    return store


def directories(root: Path, pattern: str = "incarnations/*/*") -> list[str]:
    return sorted(path.name for path in root.glob(pattern))


async def test_what_was_saved_is_found_again(tmp_path: Path) -> None:
    await saved(tmp_path, 10)
    found = CheckpointStore(tmp_path, 2, 2).newest()
    assert found is not None
    assert (found.incarnation, found.step, found.state) == (1, 10, {"ledger": {"step": 10}})
    assert (found.model / "weights").read_bytes() == b"0123456789" * 100


def test_there_may_be_none(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path / "missing", 2, 1).newest() is None


async def test_the_highest_incarnation_is_newest_whatever_its_step(tmp_path: Path) -> None:
    await saved(tmp_path, 30, incarnation=1)
    await saved(tmp_path, 20, incarnation=2)
    found = CheckpointStore(tmp_path, 2, 3).newest()
    assert found is not None
    assert (found.incarnation, found.step) == (2, 20)


async def test_a_step_can_be_asked_for(tmp_path: Path) -> None:
    store = await saved(tmp_path, 10, 20)
    found = store.newest(step=10)
    assert found is not None
    assert found.step == 10
    assert store.newest(step=15) is None


async def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    await saved(tmp_path, 10, 20, 30, 40)
    assert directories(tmp_path) == ["step-00000030", "step-00000040"]
    await saved(tmp_path, 10, incarnation=2)
    assert directories(tmp_path) == ["step-00000010", "step-00000040"]


async def test_a_lost_driver_removes_nothing(tmp_path: Path) -> None:
    await saved(tmp_path, 10, keep=1)
    await saved(tmp_path, 20, incarnation=2, keep=1)
    await saved(tmp_path, 11, 12, 13, incarnation=1, keep=1)
    found = CheckpointStore(tmp_path, 1, 3).newest()
    assert found is not None
    assert (found.incarnation, found.step) == (2, 20)


async def test_a_driver_that_is_lost_removes_nothing_once_another_has_come_up(tmp_path: Path) -> None:
    """The other has no checkpoint yet and is reading one of these."""
    await saved(tmp_path, 10, keep=1)
    (tmp_path / "incarnations" / "2").mkdir()
    await saved(tmp_path, 20, keep=1)
    assert directories(tmp_path) == ["step-00000010", "step-00000020"]


async def test_a_checkpoint_counts_though_an_old_one_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await saved(tmp_path, 10, keep=1)

    def busy(*_: object) -> None:
        raise OSError(errno.EBUSY, "a file is in use")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", busy)
        # The directory of step 20 is new, and there is nothing to remove before it is written.
        assert (await store.save(20, {}, write_model)).step == 20
    assert store.newest(step=10) is None
    assert store.newest(step=20) is not None
    await store.save(30, {}, write_model)
    assert directories(tmp_path) == ["step-00000030"]


@pytest.mark.parametrize(
    ("damage", "file"),
    [
        *product(["truncated", "missing"], ["trainer/weights", "state.json", "manifest.json"]),
        ("one byte changed", "state.json"),
        ("one byte changed", "manifest.json"),
    ],
)
async def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, file: str, damage: str) -> None:
    store = await saved(tmp_path, 10, 20)
    path = tmp_path / "incarnations" / "1" / "step-00000020" / file
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.write_bytes(content[:5] + bytes([content[5] ^ 1]) + content[6:])
    found = store.newest()
    assert found is not None
    assert found.step == 10
    told = [] if (damage, file) == ("missing", "manifest.json") else ["step-00000020"]  # one that was never finished
    assert [Path(each.partition(" ")[0]).name for each in store.damaged] == told


async def test_checkpoints_that_ranks_have_found_damaged_are_passed_over_in_turn(tmp_path: Path) -> None:
    store = await saved(tmp_path, 10, 20)
    for step, older in ((20, 10), (10, None)):
        found = store.newest()
        assert found is not None
        assert (found.step, found.model_files) == (step, described(found.model))
        store.pass_over(found, "weights is not as it was written")
        if older is None:
            with pytest.raises(
                SpecProblem, match=r"step-00000020 .*; .*step-00000010 .weights is not as it was written"
            ):
                store.newest()
    assert [Path(each.partition(" ")[0]).name for each in store.damaged] == ["step-00000020"]


@pytest.mark.parametrize("by_rank", [True, False])
async def test_a_damaged_checkpoint_takes_no_place_of_those_that_are_kept(tmp_path: Path, *, by_rank: bool) -> None:
    await saved(tmp_path, 10, 20)
    store = CheckpointStore(tmp_path, 2, 2)
    (tmp_path / "incarnations" / "2").mkdir()
    if not by_rank:
        (tmp_path / "incarnations" / "1" / "step-00000020" / "trainer" / "weights").unlink()
    found = store.newest()
    assert found is not None
    if by_rank:
        store.pass_over(found, "weights is not as it was written")
        found = store.newest()
        assert found is not None
    assert found.step == 10
    assert directories(tmp_path) == ["step-00000010", "step-00000020"], "until the next one is saved"
    await store.save(20, {}, write_model)
    assert directories(tmp_path / "incarnations" / "1", "*") == ["step-00000010"]
    assert directories(tmp_path / "incarnations" / "2", "*") == ["step-00000020"]


async def test_what_ranks_have_written_is_not_read(tmp_path: Path) -> None:
    async def write_large(directory: Path) -> Sequence[FileEntry]:
        write(directory, bytes(8 << 20))
        return described(directory)

    store = await saved(tmp_path, 10)
    before = bytes_read()
    await store.save(20, {}, write_large)
    own = bytes_read() - before - (8 << 20)  # what `described` reads
    found = CheckpointStore(tmp_path, 2, 2).newest()
    assert found is not None
    assert found.step == 20
    assert own < 1 << 20
    assert bytes_read() - before - (8 << 20) < 1 << 20


async def test_a_checkpoint_whose_files_are_not_on_the_volume_is_none(tmp_path: Path) -> None:
    """A rank has written to another volume than the driver's."""
    store = await saved(tmp_path, 10)

    async def elsewhere(directory: Path) -> Sequence[FileEntry]:
        entries = await write_model(directory)
        (directory / "weights").unlink()
        return entries

    with pytest.raises(FilesDamaged, match="trainer/weights is missing"):
        await store.save(20, {}, elsewhere)
    assert directories(tmp_path) == ["step-00000010"]


async def test_a_state_that_cannot_be_read_hides_no_older_one(tmp_path: Path) -> None:
    store = await saved(tmp_path, 10, 20)
    (tmp_path / "incarnations/1/step-00000020/state.json").write_text("{")
    assert store.newest_state() == {"ledger": {"step": 10}}
    assert store.newest_state(20) is None


async def test_where_no_checkpoint_is_whole_the_job_does_not_begin_anew_by_itself(tmp_path: Path) -> None:
    store = await saved(tmp_path, 10, 20)
    for step in (10, 20):
        (tmp_path / "incarnations" / "1" / f"step-000000{step}" / "state.json").write_bytes(b"{}")
    with pytest.raises(SpecProblem, match="Check the storage behind the claim") as problem:
        store.newest()
    assert problem.value.reason == Reason.CHECKPOINT_CORRUPT
    assert problem.value.fatal
    assert "step-00000010" in problem.value.message
    assert "step-00000020" in problem.value.message


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
async def test_a_full_volume_is_a_problem_that_names_the_cure_and_loses_nothing(tmp_path: Path, number: int) -> None:
    store = await saved(tmp_path, 10)

    async def fail(directory: Path) -> Sequence[FileEntry]:
        await write_model(directory)
        raise OSError(number, "no space")

    with pytest.raises(SpecProblem, match="Enlarge the claim") as problem:
        await store.save(20, {}, fail)
    assert problem.value.reason == Reason.CHECKPOINT_VOLUME_FULL
    assert not problem.value.fatal
    assert directories(tmp_path) == ["step-00000010"]
    found = store.newest()
    assert found is not None
    assert found.step == 10
    await store.save(20, {}, write_model)
    assert directories(tmp_path) == ["step-00000010", "step-00000020"]


async def test_a_really_full_volume(small_volume: Path) -> None:
    """A file system of 1 MiB."""
    store = await saved(small_volume, 10)

    async def fill(directory: Path) -> Sequence[FileEntry]:
        write(directory, bytes(4 << 20))
        return described(directory)

    with pytest.raises(SpecProblem) as problem:
        await store.save(20, {}, fill)
    assert problem.value.reason == Reason.CHECKPOINT_VOLUME_FULL
    assert directories(small_volume) == ["step-00000010"]
    assert store.newest() is not None


async def test_an_error_of_the_trainer_leaves_nothing_half_made(tmp_path: Path) -> None:
    store = await saved(tmp_path, 10)

    async def fail(directory: Path) -> Sequence[FileEntry]:
        await write_model(directory)
        raise RuntimeError("a rank ended")

    with pytest.raises(RuntimeError, match="a rank ended"):
        await store.save(20, {}, fail)
    assert directories(tmp_path) == ["step-00000010"]


async def test_the_same_step_twice_keeps_the_first(tmp_path: Path) -> None:
    store = await saved(tmp_path, 10)
    again = await store.save(10, {"ledger": "other"}, write_model)
    assert again.state == {"ledger": {"step": 10}}


async def test_training_goes_on_while_the_model_is_written(tmp_path: Path) -> None:
    released = asyncio.Event()

    async def slow(directory: Path) -> Sequence[FileEntry]:
        entries = await write_model(directory)
        await released.wait()
        return entries

    store = CheckpointStore(tmp_path, 2, 1)
    saving = asyncio.create_task(store.save(10, {}, slow))
    await asyncio.sleep(0)
    assert store.newest() is None
    released.set()
    assert (await saving).step == 10
    assert store.newest() is not None


def test_death_at_any_point_leaves_a_complete_checkpoint() -> None:
    """Two are written, each while the weights change. In memory: a disk would be synced thousands of times."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
        result = subprocess.run([sys.executable, "-m", SCRIPT, scratch], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    for power in (False, True):
        points = [line for line in lines if line["power"] is power]
        assert len(points) > 40
        assert not points[-1]["died"]
        found = [line["found"] for line in points]
        whole = [[incarnation, step, step, f"of step {step}"] for incarnation, step in ((1, 20), (2, 30), (2, 40))]
        assert [one for one, _ in groupby(found)] == whole, "the older one until the next is complete, and never back"
    # The next checkpoint clears away what the dead process left, and keeps two.
    for line in lines:
        incarnation, step, *_ = line["found"]
        assert line["left"] == [f"incarnations/{incarnation}/step-000000{step}", "incarnations/3/step-00000050"]
