"""The duties of the roles' agents."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from longboat_crds.base import Role
from longboat_graders.client import Client, ServerGone
from longboat_runtime.agent.actor_logs import ActorLogs
from longboat_runtime.agent.agent import Agent, Duty
from longboat_runtime.agent.decide import Rules
from longboat_runtime.agent.head_probe import Head, HeadProbe
from longboat_runtime.agent.ray_command import ENVIRONMENT, RayNode, RayPorts, head_command, worker_command
from longboat_runtime.contact import Contact
from longboat_runtime.object_store import MINIMAL_OBJECT_STORE
from longboat_runtime.ray_nodes import pool_resource

_ANSWER_SECONDS = 2.0
# What serves in the container beside the agent's.
_PEERS = {Role.REWARD: "graders", Role.ENVIRONMENT: "environments"}
# What runs in pods of these roles continues elsewhere, or may end first: see `departures`.
_ASK_TO_LEAVE = (Role.ROLLOUT, Role.ENVIRONMENT)
# Seconds of a pod's grace that are left to kill and reap what didn't end when it was asked to.
KILL_MARGIN = 5.0


@dataclass(frozen=True, slots=True)
class Place:
    """Describes the pod that the agent runs in.

    `ip` and `pod` come from the downward API, `object_store` is in bytes. `grace` is the pod's terminationGracePeriodSeconds.
    `shared_memory` is swept, None leaves it alone.
    """

    ip: str
    pod: str
    ports: RayPorts = field(default_factory=RayPorts)
    health_port: int = 6390
    object_store: int = MINIMAL_OBJECT_STORE
    shared_memory: Path | None = Path("/dev/shm")  # noqa: S108 - where segments are
    temp_dir: str = "/tmp/ray"  # noqa: S108 - Ray's own
    grace: float = 30.0

    @property
    def drain(self) -> float:
        """Seconds that a drain may take: the pod's, less a margin to kill what is left, before the kubelet kills everything."""
        return max(self.grace - KILL_MARGIN, self.grace / 2)


def head(place: Place) -> Duty:
    """Describes the Ray head of a job. It follows nobody."""
    node = RayNode(
        place.ip, {"longboat-store": 1}, _labels(Role.DRIVER, place), place.ports, place.object_store, place.temp_dir
    )
    probe = HeadProbe(f"{place.ip}:{place.ports.head}")

    async def missing() -> str | None:
        return None if (await probe.poll()).cluster is not None else "the Ray head doesn't serve yet"

    return Duty(
        "ray-head",
        head_command(node),
        _no_head,
        missing,
        place.health_port,
        place.drain,
        environment=ENVIRONMENT,
        actor_logs=ActorLogs(Path(place.temp_dir)),
    )


def driver(place: Place, job: str, namespace: str, address: str) -> Duty:
    """Describes the driver beside its head. It is ended soon after the head: it may never see that by itself.

    It is ready once a driver of this pod has had an answer from the API server.
    """
    probe, contact = HeadProbe(address), Contact()

    async def missing() -> str | None:
        return None if contact.answered else "the driver has had no answer from the API server yet"

    command = [
        sys.executable,
        "-m",
        "longboat_runtime.cli",
        "driver",
        "--job",
        job,
        "--namespace",
        namespace,
        "--head",
        address,
    ]
    rules = Rules(patience=1.0, restart_on_success=False)
    return Duty(
        "driver",
        command,
        probe.poll,
        missing,
        place.health_port,
        place.drain,
        rules,
        failure_option="--after-failure",
    )


def worker(role: Role, place: Place, address: str, number: int) -> Duty:
    """Describes a Ray node that offers `number` of its role's resource: devices of a rollout pod, actors of another."""
    return _worker(role, place, address, {f"longboat-{role.value}": number})


def pool_worker(role: Role, place: Place, address: str, pool: str, slots: int, socket: Path) -> Duty:
    """Describes a Ray node of a pool, on which at most `slots` grades run, or episodes are played, at once.

    The container with the user's code listens at `socket`.
    """
    return _worker(role, place, address, {pool_resource(role, pool): slots}, socket)


def _worker(role: Role, place: Place, address: str, offer: Mapping[str, int], socket: Path | None = None) -> Duty:
    node = RayNode(place.ip, offer, _labels(role, place), place.ports, place.object_store)
    probe = HeadProbe(address)

    async def missing() -> str | None:
        if not await probe.joined(place.pod):
            return "not joined to the Ray head yet"
        return await _no_answer(socket, _PEERS[role]) if socket is not None else None

    return Duty(
        role.value,
        worker_command(node, address),
        probe.poll,
        missing,
        place.health_port,
        place.drain,
        environment=ENVIRONMENT,
        shared_memory=place.shared_memory,
        actor_logs=ActorLogs(Path(place.temp_dir)),
        may_leave=(lambda: probe.may_leave(place.pod)) if role in _ASK_TO_LEAVE else None,
    )


def run_agent(duty: Callable[[], Duty]) -> int:
    """Runs an agent to its end and returns its exit code."""

    async def live() -> int:
        return await Agent(duty()).run()

    return asyncio.run(live())


def _labels(role: Role, place: Place) -> dict[str, str]:
    return {"longboat.dev/role": role.value, "longboat.dev/pod": place.pod}


async def _no_head() -> Head:
    return Head(cluster="itself", settled=True)


async def _no_answer(socket: Path, peer: str) -> str | None:
    client = Client(socket, peer)
    try:
        await asyncio.wait_for(client.state(), _ANSWER_SECONDS)
    except (TimeoutError, ServerGone):
        return f"no {peer} answer at {socket}"
    finally:
        await client.close()
    return None
