"""Graders follow the CPU quota of their container."""

from __future__ import annotations

import asyncio
import fcntl
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.rewards import RewardSpec
from longboat_graders.messages import OutcomeKind
from longboat_graders.quota import Felt, Quota, at_once
from longboat_graders.result import RewardSample
from longboat_runtime.reward.client import GraderClient
from tests.reward.conftest import set_quota
from tests.support.waiting import eventually, eventually_async

V1 = Path("/sys/fs/cgroup/cpu")
FUNCTIONS = """
import fcntl

def act(sample):
    # Sleeps or computes until the file is unlocked.
    with open(sample.ground_truth) as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | (fcntl.LOCK_NB if sample.text == "compute" else 0))
                return 1.0
            except BlockingIOError:
                pass
"""
felts = st.builds(Felt, st.floats(0, 64), st.integers(0, 64), st.booleans())


@given(st.integers(1, 64), st.floats(0.001, 100), st.integers(0, 100), st.none() | felts)
def test_one_grade_for_each_cpu_and_never_fewer_than_one_nor_more_than_all(
    processes: int, quota: float, before: int, felt: Felt | None
) -> None:
    found = at_once(processes, quota, before, felt)
    assert 1 <= found <= processes
    assert found >= min(quota, processes)
    assert at_once(processes, None, before, felt) == processes
    assert at_once(processes, quota, 1, None) == min(max(1, -int(-quota // 1)), processes)


def test_grades_that_leave_cpu_unused_make_room_for_others_and_those_that_want_more_do_not() -> None:
    sleeping, fighting = Felt(0.1, 0, waiting=True), Felt(1.0, 3, waiting=True)
    on_a_busy_node, nobody = Felt(0.1, 1, waiting=True), Felt(0.0, 0, waiting=False)
    assert [at_once(3, 1.0, before, sleeping) for before in (1, 2, 3)] == [2, 3, 3]
    assert [at_once(3, 1.0, before, fighting) for before in (1, 2, 3)] == [1, 1, 2]
    assert [at_once(3, 1.0, 2, felt) for felt in (on_a_busy_node, nobody, None)] == [2, 2, 2]


def test_a_quota_that_rises_or_falls_is_followed_at_the_next_look(tmp_path: Path) -> None:
    set_quota(tmp_path, "30000 100000\n")
    quota = Quota(8, tmp_path)
    assert (quota.at_once, quota.cpu_seconds) == (1, None), "this cgroup doesn't say what was used"
    for text, expected in (("400000 100000", 4), ("150000 100000", 4), ("max 100000", 8), ("1000000 100000", 8)):
        set_quota(tmp_path, text)
        quota.look(waiting=True)
        assert quota.at_once == expected, text


def test_without_a_cgroup_of_its_own_all_processes_grade() -> None:
    quota = Quota(8, None)
    quota.look(waiting=True)
    assert (quota.at_once, quota.cpu_seconds) == (8, None)


@pytest.fixture
def directory(graders_directory: Path) -> Path:
    path = graders_directory / uuid.uuid4().hex[:8]
    path.mkdir()
    path.chmod(0o755)
    (path / "functions.py").write_text(FUNCTIONS)
    return path


async def loaded(socket: Path, directory: Path) -> tuple[GraderClient, asyncio.Event]:
    """A client with the function loaded, and what is set when another number of grades runs at once."""
    changed = asyncio.Event()
    client = GraderClient(socket, changed.set)
    reward = RewardSpec(name="act", function=f"{directory}/functions.py:act")
    assert await client.load(reward, "rewards[0]") is None
    return client, changed


async def running(client: GraderClient, count: int) -> None:
    await eventually_async(client.state, right=lambda state: state["running"] == count)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Locks the file for the block: grades that wait for it go on afterwards."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def grades(client: GraderClient, count: int, text: str, lock: Path) -> list[asyncio.Task]:
    sample = RewardSample(text=text, prompt="", ground_truth=str(lock))
    return [asyncio.create_task(client.grade("act", sample, 600.0, number)) for number in range(count)]


async def test_running_graders_follow_a_quota_that_rises(
    start_graders: Callable[..., AbstractContextManager[Path]], directory: Path
) -> None:
    """Neither the process nor a grade is started again; whoever asks is told."""
    cgroup, lock = directory / "cgroup", directory / "lock"
    cgroup.mkdir()
    set_quota(cgroup, "30000 100000\n")
    with start_graders(directory, 4, cgroup) as socket:
        client, changed = await loaded(socket, directory)
        assert client.capacity is not None
        assert client.capacity.at_once == 1
        with locked(lock):
            asked = grades(client, 6, "sleep", lock)
            await running(client, 1)
            changed.clear()
            set_quota(cgroup, "300000 100000\n")
            await changed.wait()
            assert client.capacity.at_once == 3
            await running(client, 3)
        assert {outcome.kind for outcome in await asyncio.gather(*asked)} == {OutcomeKind.SCORED}
        await client.close()


@pytest.fixture
def real_cgroup(directory: Path) -> Iterator[Path]:
    """A cgroup of its own with a quota of one CPU, as a container sees it: below `cpu` and `cpuacct`."""
    if not os.access(V1, os.W_OK) or not (V1 / "cpu.cfs_quota_us").exists():
        pytest.skip("needs root and cgroup v1")
    name = f"longboat-test-{uuid.uuid4().hex[:8]}"
    root = directory / "cgroup"
    root.mkdir()
    groups = [V1.parent / kind / name for kind in ("cpu", "cpuacct")]
    for group in groups:
        group.mkdir()
        (root / group.parent.name).symlink_to(group)
    (groups[0] / "cpu.cfs_quota_us").write_text("100000")
    yield root
    for group in groups:
        # Children of graders that have ended are about to end.
        eventually((group / "cgroup.procs").read_text, lambda processes: not processes)
        group.rmdir()


async def test_in_a_real_cgroup_grades_that_sleep_make_room_and_what_they_use_is_known(
    start_graders: Callable[..., AbstractContextManager[Path]], directory: Path, real_cgroup: Path
) -> None:
    def join(pid: int) -> None:
        for group in real_cgroup.iterdir():
            (group / "cgroup.procs").write_text(str(pid))

    with start_graders(directory, 3, real_cgroup, join) as socket:
        client, changed = await loaded(socket, directory)
        assert client.capacity is not None
        assert client.capacity.at_once == 1
        assert client.capacity.cpu_seconds is not None
        with locked(directory / "lock"):
            sleeping = grades(client, 4, "sleep", directory / "lock")
            await running(client, 3)
        await asyncio.gather(*sleeping)
        changed.clear()
        with locked(directory / "other"):
            computing = grades(client, 4, "compute", directory / "other")
            while client.capacity.at_once > 1:
                await changed.wait()
                changed.clear()
            used = client.capacity.cpu_seconds
            await eventually_async(
                lambda: client.capacity, right=lambda now: now is not None and now.cpu_seconds != used
            )
        assert {outcome.kind for outcome in await asyncio.gather(*computing)} == {OutcomeKind.SCORED}
        await client.close()
