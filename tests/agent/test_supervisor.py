"""A child and everything that comes from it, with real processes."""

import asyncio
import contextlib
import operator
import os
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from longboat_crds.incarnations import UNANSWERED_EXIT_CODE
from longboat_runtime.agent import agent as agents
from longboat_runtime.agent import supervisor as supervisors
from longboat_runtime.agent.agent import Agent, Duty, write_termination_message
from longboat_runtime.agent.decide import Rules
from longboat_runtime.agent.head_probe import Head
from longboat_runtime.agent.roles import Place, head
from longboat_runtime.agent.supervisor import Supervisor, descendants
from longboat_runtime.weights.handover_files import PREFIX
from tests.support.loop_time import pass_time
from tests.support.ports import free_port
from tests.support.waiting import DEADLINE_SECONDS, eventually, eventually_async


def program(source: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(source)]


def in_process(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs the test in a process of its own: a supervisor adopts, reaps and kills whatever descends from its process."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            asyncio.run(test())
            code = 0
        except BaseException:  # noqa: BLE001 - this process has nobody else to report it
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# Starts a process that starts another and ends, so that the last is an orphan; all but the first ignore SIGTERM.
FAMILY = """
import os, signal, sys, time
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    time.sleep(1e6)
os.wait()
print("ready", file=sys.stderr, flush=True)
time.sleep(1e6)
"""


async def family(supervisor: Supervisor) -> None:
    """Starts the family above, and waits until it is complete."""
    supervisor.start(program(FAMILY))
    await eventually_async(lambda: (supervisor.last_lines, len(descendants())), (["ready"], 2).__eq__)


def test_end_kills_orphans_too() -> None:
    async def test() -> None:
        supervisor = Supervisor()
        await family(supervisor)
        await supervisor.end(DEADLINE_SECONDS)
        assert descendants() == set()
        assert supervisor.exit_code == -signal.SIGKILL
        assert not supervisor.running

    in_process(test)


def test_drain_asks_first_and_kills_what_is_deaf() -> None:
    async def test() -> None:
        supervisor = Supervisor()
        await family(supervisor)
        draining = asyncio.create_task(supervisor.drain(grace=DEADLINE_SECONDS))
        await supervisor.exited.wait()
        assert supervisor.exit_code == -signal.SIGTERM
        assert len(descendants()) == 1
        pass_time(DEADLINE_SECONDS)
        await draining
        assert descendants() == set()

    in_process(test)


def test_the_end_of_a_child_is_told_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisors, "_TAIL_SECONDS", DEADLINE_SECONDS)

    async def test() -> None:
        supervisor = Supervisor()
        for code in (3, 0):
            # More than a pipe holds, so that some of it is still to be read when the child ends.
            supervisor.start(program(f"import sys; sys.stderr.write('before\\n' * 50_000 + 'cause'); sys.exit({code})"))
            await supervisor.exited.wait()
            assert supervisor.exit_code == code
            await supervisor.read_out()
            assert supervisor.last_lines == [*["before"] * 39, "cause"]
        assert supervisor.restarts == 1

    in_process(test)


def test_orphans_are_reaped() -> None:
    async def test() -> None:
        supervisor = Supervisor()
        supervisor.start(
            program(
                """
                import os, sys, time
                for _ in range(50):
                    if os.fork() == 0:
                        if os.fork() != 0: os._exit(0)
                        time.sleep(1e6)
                    os.wait()
                print(os.getpid(), file=sys.stderr, flush=True)
                time.sleep(1e6)
                """
            )
        )
        await eventually_async(lambda: supervisor.last_lines)
        child = int(supervisor.last_lines[0])
        orphans = descendants() - {child}
        assert len(orphans) == 50
        for orphan in orphans:
            os.kill(orphan, signal.SIGKILL)
        await eventually_async(descendants, {child}.__eq__)
        await supervisor.end(DEADLINE_SECONDS)

    in_process(test)


FREEZER = Path("/sys/fs/cgroup/freezer")
needs_freezer = pytest.mark.skipif(
    not os.access(FREEZER, os.W_OK), reason="needs the freezer of cgroup v1, whose processes no signal ends"
)


class Freezer:
    """A control group: what is in it and frozen takes SIGKILL only once it is thawed, as one that waits for a dead disk."""

    def __init__(self, group: Path) -> None:
        self.group = group
        group.mkdir()

    def freeze(self, pid: int) -> None:
        (self.group / "cgroup.procs").write_text(str(pid))
        self._become("FROZEN")

    def thaw(self) -> None:
        self._become("THAWED")

    def remove(self) -> None:
        self.thaw()
        eventually(self._kill, operator.not_)
        self.group.rmdir()

    def _kill(self) -> list[str]:
        """Kills the processes in the group, and returns their ids."""
        pids = (self.group / "cgroup.procs").read_text().split()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        return pids

    def _become(self, state: str) -> None:
        file = self.group / "freezer.state"
        file.write_text(state)
        eventually(lambda: file.read_text().strip(), state.__eq__)


@pytest.fixture
def freezer() -> Iterator[Freezer]:
    made = Freezer(FREEZER / f"longboat-test-{os.getpid()}")
    yield made
    made.remove()


@needs_freezer
def test_end_gives_up_what_no_signal_ends(freezer: Freezer) -> None:
    async def test() -> None:
        supervisor = Supervisor()
        supervisor.start(program("import sys, time; print('ready', file=sys.stderr, flush=True); time.sleep(1e6)"))
        await eventually_async(lambda: supervisor.last_lines, ["ready"].__eq__)
        (child,) = descendants()
        freezer.freeze(child)
        assert await supervisor.end(patience=0.5) == {child}
        freezer.thaw()
        assert await supervisor.end(DEADLINE_SECONDS) == set()
        assert supervisor.exit_code == -signal.SIGKILL

    in_process(test)


async def get(port: int, path: str) -> str:
    """The answer to a probe; empty while nobody listens."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return ""
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    return answer


async def answers(port: int, path: str, words: str) -> None:
    await eventually_async(lambda: get(port, path), lambda answer: words in answer)


def agent_of(port: int, cluster: Callable[[], str]) -> Agent:
    async def head_now() -> Head:
        return Head(cluster(), settled=True)

    async def nothing_missing() -> None:
        return None

    child = program("import time; time.sleep(1e6)")
    return Agent(Duty("trainer", child, head_now, nothing_missing, port, grace=1.0, kill_patience=0.5))


@needs_freezer
@pytest.mark.parametrize("end", ["thawed", "asked"])
def test_an_agent_whose_child_does_not_end_is_unhealthy_and_says_why(
    freezer: Freezer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Its container has to be replaced: by itself once the child ends, else when the kubelet asks for it."""
    told, port = tmp_path / "termination-log", free_port()
    told.touch()
    monkeypatch.setattr(agents, "write_termination_message", lambda message: write_termination_message(message, told))

    async def test() -> None:
        cluster = "first"
        running = asyncio.create_task(agent_of(port, lambda: cluster).run())
        await answers(port, "/readyz", "200 OK")
        assert "200 OK" in await get(port, "/healthz")
        (child,) = descendants()
        freezer.freeze(child)
        cluster = "second"
        await answers(port, "/healthz", "503 ")
        assert "trainer can't be ended" in await get(port, "/healthz")
        assert f"{child} python" in told.read_text()
        assert not running.done()
        if end == "asked":
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            freezer.thaw()
        assert await running == 1
        freezer.thaw()

    in_process(test)


@pytest.mark.parametrize(("pod", "drain"), [(0.0, 0.0), (4.0, 2.0), (30.0, 25.0), (600.0, 595.0)])
def test_a_drain_may_take_as_long_as_the_pod_less_a_margin(pod: float, drain: float) -> None:
    assert head(Place("127.0.0.1", "pod", grace=pod)).grace == drain


@pytest.mark.parametrize(("code", "ends"), [(UNANSWERED_EXIT_CODE, UNANSWERED_EXIT_CODE), (3, 1)])
def test_an_agent_ends_as_a_driver_without_an_answer_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, ends: int
) -> None:
    """The operator sees the exit status of the container alone."""
    written = tmp_path / "termination-log"
    written.touch()
    monkeypatch.setattr(
        agents, "write_termination_message", lambda message: write_termination_message(message, written)
    )

    async def test() -> None:
        async def itself() -> Head:
            return Head("first", settled=True)

        async def nothing_missing() -> None:
            return None

        child = program(f"import sys; print('driver failed: no answer', file=sys.stderr); sys.exit({code})")
        rules = Rules(quick=0.0)
        assert await Agent(Duty("driver", child, itself, nothing_missing, free_port(), 1.0, rules)).run() == ends
        assert written.read_text() == f"driver exited with code {code}: driver failed: no answer"

    in_process(test)


def test_a_child_finds_no_bucket_of_an_engine_in_a_container_before(tmp_path: Path) -> None:
    """Shared memory is the pod's, and Ray's node wants its part of it as it starts."""
    (tmp_path / f"{PREFIX}999999999-0").write_bytes(b"x")

    async def test() -> None:
        async def itself() -> Head:
            assert not await asyncio.to_thread(lambda: [*tmp_path.iterdir()])
            return Head("first", settled=True)

        async def nothing_missing() -> None:
            return None

        child, rules = program("raise SystemExit(3)"), Rules(quick=0.0)
        duty = Duty("rollout", child, itself, nothing_missing, free_port(), 1.0, rules, shared_memory=tmp_path)
        assert await Agent(duty).run() == 1

    in_process(test)
