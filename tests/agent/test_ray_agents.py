"""Agents with real Ray processes: a head that dies, a raylet that dies, a drain.

Every agent is PID 1 of a PID namespace, as in its pod; that also hides the other nodes' processes from Ray, which looks at all
there are.
"""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest
import ray.util

from longboat_runtime.agent.supervisor import children
from tests.support.ports import adjacent_ports
from tests.support.waiting import eventually

T = TypeVar("T")

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(shutil.which("unshare") is None, reason="needs PID namespaces (util-linux)"),
]

# How many one after the other the agents below are given.
PORTS = 25

# What the agents of a head, a rollout and a driver do; the driver's own program notes that it has reached the API server, and waits.
AGENT = '''
import sys
from dataclasses import replace
from longboat_crds.base import Role
from longboat_runtime.agent import roles
from longboat_runtime.agent.ray_command import RayPorts

role, ip, base, directory = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
offset = {"head": 0, "rollout": 10, "driver": 20}[role]
ports = RayPorts(base, base + offset + 1, base + offset + 2, base + offset + 3)
place = roles.Place(
    ip,
    f"pod-{role}",
    ports,
    health_port=base + offset + 4,
    shared_memory=None,
    temp_dir=f"{directory}/ray",
    grace=1e6,  # a drain that waited as long would never end
)
program = f"""
import time
from longboat_runtime.contact import Contact
Contact().note_answer()
open('{directory}/started', 'a').write('x')
time.sleep(1e6)
"""

def made():
    if role == "head":
        return roles.head(place)
    if role == "rollout":
        return roles.worker(Role.ROLLOUT, place, f"{ip}:{base}", 2)
    return replace(roles.driver(place, "job", "default", f"{ip}:{base}"), command=[sys.executable, "-c", program])

def duty():
    # No failure ends an agent: nobody would start its container again here.
    return replace(made(), rules=replace(made().rules, quick=1e6, quick_failures=1000))

sys.exit(roles.run_agent(duty))
'''


@dataclass
class Agent:
    """Holds one agent. `process` is the `unshare` that keeps its namespace, `head` the head's address; `environment` has its token."""

    process: subprocess.Popen[bytes]
    directory: Path
    port: int
    head: str
    environment: dict[str, str]

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz") as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def find(self, program: str) -> list[int]:
        """Lists descendants whose command line holds `program`, without their own children: a fork looks like its parent at first."""
        found, pending = [], [self.process.pid]
        while pending:
            pid = pending.pop()
            try:
                if program in Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace"):
                    found.append(pid)
                else:
                    pending += children(pid)
            except OSError:
                continue
        return found

    def find_program(self) -> list[int]:
        """Lists the processes of the driver's own program."""
        return self.find(f"{self.directory}/started")

    def departures(self, call: str) -> str:
        """Returns what a call of `longboat_runtime.departures` says to the head's `client`, as a driver calls it."""
        program = f"""
from ray._raylet import GcsClient
from longboat_runtime.departures import asking, let_go
client = GcsClient(address={self.head!r})
print({call})
"""
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=self.environment, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def head_by_the_doctor(self, pod: str, **environment: str) -> str:
        """Returns what the doctor finds of the head in a container of a pod, with these changes to the environment."""
        program = f"""
import asyncio
from longboat_runtime.doctor.head import judge_head, reach
from longboat_runtime.doctor.place import Place
place = Place("rollout", {self.head!r}, 2, {pod!r})
print(judge_head(asyncio.run(reach(place)), place).text)
"""
        command = [sys.executable, "-c", program]
        done = subprocess.run(
            command, env=self.environment | environment, check=True, stdout=subprocess.PIPE, text=True
        )
        return done.stdout.splitlines()[-1]

    def ask_to_stop(self) -> None:
        (agent,) = children(self.process.pid)
        os.kill(agent, signal.SIGTERM)


def until(agents: dict[str, Agent], look: Callable[[], T], right: Callable[[T], object] = bool) -> T:
    """Waits like `eventually`; fails at once if an agent ends."""

    def look_again() -> T:
        ended = {role: code for role, agent in agents.items() if (code := agent.process.poll()) is not None}
        assert not ended
        return look()

    return eventually(look_again, right)


def all_ready(agents: dict[str, Agent]) -> None:
    until(agents, lambda: {role for role, agent in agents.items() if agent.ready()}, agents.keys().__eq__)


@pytest.fixture
def agents() -> Iterator[dict[str, Agent]]:
    directory = Path(tempfile.mkdtemp(prefix="lb-"))
    token = directory / "token"
    token.write_text(secrets.token_hex(32))
    # What a pod's containers tell each other is in its directory of temporary files.
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "TMPDIR": str(directory)}
    base = adjacent_ports(PORTS)
    namespace = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if os.getuid() != 0:
        namespace += ["--user", "--map-root-user"]
    started = {}
    for role, offset in (("head", 0), ("rollout", 10), ("driver", 20)):
        ip = ray.util.get_node_ip_address()
        arguments = [role, ip, str(base), str(directory)]
        process = subprocess.Popen([*namespace, sys.executable, "-c", AGENT, *arguments], env=environment)
        started[role] = Agent(process, directory, base + offset + 4, f"{ip}:{base}", environment)
    yield started
    for agent in started.values():
        agent.process.kill()
        agent.process.wait()
    shutil.rmtree(directory)


def test_agents_follow_the_head_through_its_deaths(agents: dict[str, Agent]) -> None:
    head, rollout, driver = agents["head"], agents["rollout"], agents["driver"]
    all_ready(agents)
    (first_raylet,), (first_driver,) = rollout.find("raylet/raylet"), until(agents, driver.find_program)

    (gcs,) = head.find("gcs/gcs_server")
    os.kill(gcs, signal.SIGKILL)
    until(agents, driver.find_program, lambda running: first_driver not in running)
    until(agents, lambda: head.find("gcs/gcs_server"), lambda running: running not in ([], [gcs]))
    until(agents, lambda: rollout.find("raylet/raylet"), lambda running: first_raylet not in running)
    all_ready(agents)

    (second_raylet,) = rollout.find("raylet/raylet")
    os.kill(second_raylet, signal.SIGKILL)
    until(agents, lambda: rollout.find("raylet/raylet"), lambda running: running not in ([], [second_raylet]))
    until(agents, rollout.ready)

    (third_raylet,) = rollout.find("raylet/raylet")
    (stand_in,) = until(agents, lambda: rollout.find("ray_node.py\0runtime-env"))
    os.kill(stand_in, signal.SIGKILL)  # the raylet, whose agent that is, ends by itself, with status 0
    until(agents, lambda: rollout.find("raylet/raylet"), lambda running: running not in ([], [third_raylet]))
    until(agents, rollout.ready)

    rollout.ask_to_stop()
    until(agents, lambda: rollout.departures("asking(client)"), "['pod-rollout']".__eq__)
    assert rollout.find("raylet/raylet"), "it stays until the driver lets it go"
    rollout.departures("let_go(client, 'pod-rollout')")
    assert rollout.process.wait() == 0
    for role in ("driver", "head"):
        agents[role].ask_to_stop()
    assert [agents[role].process.wait() for role in ("driver", "head")] == [0, 0]


def test_a_rollout_pod_does_not_wait_for_a_head_that_is_gone(agents: dict[str, Agent]) -> None:
    """A job's pods are all deleted at once."""
    all_ready(agents)
    for role in ("head", "driver"):
        agents[role].ask_to_stop()
    assert [agents[role].process.wait() for role in ("head", "driver")] == [0, 0]
    agents["rollout"].ask_to_stop()
    assert agents["rollout"].process.wait() == 0


def test_the_doctor_finds_the_head_and_whether_it_counts_the_pod(agents: dict[str, Agent], tmp_path: Path) -> None:
    head = agents["rollout"]
    until(agents, head.ready)
    assert head.head_by_the_doctor("pod-rollout").endswith("serves, and counts this pod's node")
    assert head.head_by_the_doctor("pod-elsewhere").endswith("serves, and this pod hasn't joined")
    (tmp_path / "token").write_text(secrets.token_hex(32))
    refused = head.head_by_the_doctor("pod-rollout", RAY_AUTH_TOKEN_PATH=str(tmp_path / "token"))
    assert refused.endswith("takes connections and answers no request")
