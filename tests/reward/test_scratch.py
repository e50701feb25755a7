"""Directories and processes that graders leave behind when they are killed, or when they can't start a grade: none for long."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from longboat_crds.rewards import RewardSpec
from longboat_graders.result import RewardSample
from longboat_graders.socket_server import scratch_directory
from longboat_runtime.reward.client import GraderClient
from tests.reward.conftest import LONG
from tests.support.waiting import eventually_async

FUNCTION = "import os\ndef parent(sample):\n    open('left', 'w').close()\n    return float(os.getppid())"
# A zygote in a process of its own, which it confines. Says what it has left after a fork that failed, and after one that didn't.
FORKS = """
import errno, json, os, select, socket, sys, time
from longboat_graders import zygote
from longboat_graders.process_tree import children
from longboat_graders.watch import Origins

control, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
found = zygote.Zygote(control, lambda sample: 0.0, Origins([]), sys.argv[1], [])

def fork(number):
    server, theirs = socket.socketpair()
    with server, theirs:
        socket.send_fds(ours, [json.dumps({"fork": [number], "stays": False, "watched": False}).encode()], [theirs.fileno()])
        found._turn()
    while found._children or found._ending:
        found._turn()
    answer = None
    while answer is None:
        answer = next((each for each in json.loads(ours.recv(2**16)) if "ended" not in each), None)
    return [next(iter(answer)), len(os.listdir(sys.argv[1])), len(os.listdir("/proc/self/fd")), children()]

def refused(*_):
    raise OSError(errno.EMFILE, "refused")

said = [fork(1)]
for module, name in ((os, "fork"), (os, "pidfd_open"), (zygote.Sandbox, "prepare")):
    real = getattr(module, name)
    setattr(module, name, refused)
    said.append(fork(2))
    setattr(module, name, real)
print(json.dumps([*said, fork(3)]))
"""


def left(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_directories_of_graders_that_were_killed_are_removed(tmp_path: Path) -> None:
    (tmp_path / "somebody else's").mkdir()
    first, lock = scratch_directory(str(tmp_path))
    (first / "of a grade").mkdir()
    second, other_lock = scratch_directory(str(tmp_path))
    assert left(tmp_path) == {"somebody else's", first.name, second.name}
    # As the kernel does when a process ends, however it ends.
    os.close(lock)
    third, last_lock = scratch_directory(str(tmp_path))
    assert left(tmp_path) == {"somebody else's", second.name, third.name}
    os.close(other_lock)
    os.close(last_lock)


def test_a_fork_that_fails_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORKS, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, *failed, last = json.loads(done.stdout)
    assert [answer for answer, *_ in (first, *failed, last)] == ["forked", "failed", "failed", "failed", "forked"]
    # One directory, which each of them uses again, the same open files, and no process.
    assert [rest for _, *rest in (*failed, last)] == [first[1:]] * 4
    assert first[1:] == [1, first[2], []]


@pytest.mark.parametrize("again", ["a zygote that died", "a function that was loaded anew"])
async def test_directories_of_children_go_with_their_zygote(graders: Path, graders_directory: Path, again: str) -> None:
    (graders_directory / "parents.py").write_text(FUNCTION)
    client = GraderClient(graders)

    async def load(field: str) -> None:
        function = f"{graders_directory}/parents.py:parent"
        reward = RewardSpec.model_validate({"name": "parents", "function": function, "isolation": "PerGrade"})
        assert await client.load(reward, field) is None

    async def parent() -> int:
        return int((await client.grade("parents", RewardSample("", ""), LONG, 0)).score)

    def directories() -> set[Path]:
        return set(graders_directory.glob("longboat-graders-*/parents-*/*"))

    await load("spec.rewards[0]")
    first = await parent()
    before = directories()
    assert before
    if again == "a zygote that died":
        os.kill(first, signal.SIGKILL)
    else:
        await load("spec.rewards[1]")
    await eventually_async(parent, right=lambda now: now not in (first, 0))
    assert not before & directories()
    await client.close()
