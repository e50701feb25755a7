"""`longboat agent ROLE`: the first process of a role's container."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longboat_crds.base import Role

if TYPE_CHECKING:
    from longboat_runtime.agent import roles

app = typer.Typer(
    no_args_is_help=True, help="First process of a role pod: runs, restarts and reaps what the pod is for."
)

Head = Annotated[str, typer.Option(help="Ray head of the job, host:port.")]
Slots = Annotated[int, typer.Option(min=1, help="Actors of the role that this pod takes.")]
Devices = Annotated[int, typer.Option(min=1, help="Devices of this pod: GPUs; on CPUs, worker processes of engines.")]
HealthPort = Annotated[int, typer.Option(help="Port of /readyz and /healthz.")]
Grace = Annotated[
    float, typer.Option(min=0, help="The pod's terminationGracePeriodSeconds: a drain ends a little earlier.")
]

# The head's container and the driver's share the pod's network.
_HEALTH_PORT, _HEAD_HEALTH_PORT = 6390, 6391
# Kubernetes' default.
_GRACE = 30.0


@app.command("head")
def head(health_port: HealthPort = _HEAD_HEALTH_PORT, grace_seconds: Grace = _GRACE) -> None:
    """Runs the Ray head of a job."""
    from longboat_runtime.agent import roles

    # The driver, another user of the same group, writes to the sockets and log directory of Ray's session.
    os.umask(0o007)
    raise typer.Exit(roles.run_agent(lambda: roles.head(_place(health_port, grace_seconds))))


@app.command("driver")
def driver(
    job: Annotated[str, typer.Option(help="Name of the RLJob.")],
    namespace: Annotated[str, typer.Option(help="Namespace of the RLJob.")],
    head: Head = "127.0.0.1:6379",
    health_port: HealthPort = _HEALTH_PORT,
    grace_seconds: Grace = _GRACE,
) -> None:
    """Runs the driver of a job beside its Ray head."""
    from longboat_graders import prctl
    from longboat_runtime.agent import roles

    prctl.hide_memory()
    raise typer.Exit(roles.run_agent(lambda: roles.driver(_place(health_port, grace_seconds), job, namespace, head)))


@app.command("rollout")
def rollout(
    head: Head, devices: Devices = 1, health_port: HealthPort = _HEALTH_PORT, grace_seconds: Grace = _GRACE
) -> None:
    """Joins a pod of engines to the job."""
    _worker(Role.ROLLOUT, head, devices, _place(health_port, grace_seconds, engines=True))


@app.command("trainer")
def trainer(
    head: Head, slots: Slots = 1, health_port: HealthPort = _HEALTH_PORT, grace_seconds: Grace = _GRACE
) -> None:
    """Joins a pod of trainer ranks to the job."""
    _worker(Role.TRAINER, head, slots, _place(health_port, grace_seconds))


@app.command("reward")
def reward(
    head: Head,
    pool: Annotated[str, typer.Option(help="Reward pool that the pod belongs to.")],
    slots: Annotated[int, typer.Option(min=1, help="Grades that this pod runs at once.")] = 1,
    socket: Annotated[Path, typer.Option(help="Where the pod's graders listen.")] = Path("/run/longboat/graders.sock"),
    health_port: HealthPort = _HEALTH_PORT,
    grace_seconds: Grace = _GRACE,
) -> None:
    """Joins a pod of graders to the job."""
    _pool_worker(Role.REWARD, head, pool, slots, socket, _place(health_port, grace_seconds))


@app.command("environment")
def environment(
    head: Head,
    pool: Annotated[str, typer.Option(help="Environment pool that the pod belongs to.")],
    slots: Annotated[int, typer.Option(min=1, help="Episodes that this pod plays at once.")] = 1,
    socket: Annotated[Path, typer.Option(help="Where the pod's environments listen.")] = Path(
        "/run/longboat/environments.sock"
    ),
    health_port: HealthPort = _HEALTH_PORT,
    grace_seconds: Grace = _GRACE,
) -> None:
    """Joins a pod of environments to the job."""
    _pool_worker(Role.ENVIRONMENT, head, pool, slots, socket, _place(health_port, grace_seconds))


def _pool_worker(role: Role, head: str, pool: str, slots: int, socket: Path, place: roles.Place) -> None:
    from longboat_runtime.agent import roles

    raise typer.Exit(roles.run_agent(lambda: roles.pool_worker(role, place, head, pool, slots, socket)))


def _worker(role: Role, head: str, number: int, place: roles.Place) -> None:
    from longboat_runtime.agent import roles

    raise typer.Exit(roles.run_agent(lambda: roles.worker(role, place, head, number)))


def _place(health_port: int, grace: float, *, engines: bool = False) -> roles.Place:
    """Returns the pod as the downward API tells it; outside a pod, this machine. `engines` says whether any run there."""
    from longboat_runtime.agent import roles
    from longboat_runtime.object_store import SHARED_MEMORY, object_store_size

    name = socket.gethostname()
    shared_memory = os.statvfs(SHARED_MEMORY)
    return roles.Place(
        ip=os.environ.get("POD_IP") or socket.gethostbyname(name),
        pod=os.environ.get("POD_NAME", name),
        health_port=health_port,
        grace=grace,
        object_store=object_store_size(shared_memory.f_blocks * shared_memory.f_frsize, engines=engines),
    )
