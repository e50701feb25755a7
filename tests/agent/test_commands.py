"""The runtime's command line takes what the operator puts into pods."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from longboat_crds.base import Role
from longboat_runtime.agent.roles import Place, pool_worker
from longboat_runtime.cli import app
from longboat_runtime.ray_nodes import pool_resource
from tests.operator_plan.simulated_cluster import SimulatedCluster, with_environments


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yields the names of all containers of a job with environments, each with its command line."""
    cluster = SimulatedCluster(with_environments())
    cluster.settle()
    for name, pod in cluster.children["Pod"].items():
        for container in [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]:
            yield f"{name}/{container['name']}", [*container["command"], *container["args"]]


def test_every_container_is_started_by_a_command_that_there_is() -> None:
    started = dict(commands())
    assert {"sums-environment-games-0-a0/episodes", "sums-environment-games-0-a0/environment"} <= started.keys()
    for program, *arguments in started.values():
        command = typer.main.get_command(app)
        context = command.make_context(program, list(arguments))
        while hasattr(command, "resolve_command"):
            name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])  # type: ignore[attr-defined]
            context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("role", [role for role in Role if role.has_pools])
def test_a_pod_of_a_pool_offers_as_many_slots_of_the_pool_as_it_is_told(role: Role) -> None:
    duty = pool_worker(role, Place("10.0.0.1", "x-0"), "x-head:6379", "games", 5, Path("/nowhere.sock"))
    assert duty.role == role
    assert any(pool_resource(role, "games") in word and "5" in word for word in duty.command)
