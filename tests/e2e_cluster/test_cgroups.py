"""Control groups of a cluster."""

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from e2e.cluster import cgroups
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

GROUP = f"/longboat-frozen-{os.getpid()}/node0/pod"


@pytest.fixture
def asleep() -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group that is frozen."""
    cgroups.create(GROUP)
    process = subprocess.Popen(["sleep", "infinity"])
    for file in cgroups.process_files(GROUP):
        file.write_text(str(process.pid))
    folders = [file.parent for file in cgroups.process_files(GROUP)]
    states = [folder / "freezer.state" for folder in folders if (folder / "freezer.state").exists()]
    for state in states:
        state.write_text("FROZEN")
        eventually(lambda state=state: state.read_text().strip(), "FROZEN".__eq__)
    for folder in () if states else folders:
        (folder / "cgroup.freeze").write_text("1")
        eventually(lambda folder=folder: (folder / "cgroup.events").read_text(), lambda events: "frozen 1" in events)
    yield process
    cgroups.thaw(GROUP)
    process.kill()
    process.wait()
    cgroups.remove(f"/longboat-frozen-{os.getpid()}")


def test_a_frozen_process_is_killed(asleep: subprocess.Popen[bytes]) -> None:
    """What a node leaves behind whose container was being signalled when its power went."""
    cgroups.kill(f"/longboat-frozen-{os.getpid()}")
    assert asleep.wait() == -signal.SIGKILL


def test_a_quota_is_told_in_millicores() -> None:
    group = f"/longboat-quota-{os.getpid()}"
    cgroups.create(group)
    try:
        assert cgroups.cpu_quota(group) is None, "it has none"
        for folder in (file.parent for file in cgroups.process_files(group)):
            if (folder / "cpu.max").exists():
                (folder / "cpu.max").write_text("25000 100000")
            elif (folder / "cpu.cfs_quota_us").exists():
                (folder / "cpu.cfs_quota_us").write_text("25000")
        assert cgroups.cpu_quota(group) == 250
    finally:
        cgroups.remove(group)
    assert cgroups.cpu_quota(group) is None, "it is gone"
