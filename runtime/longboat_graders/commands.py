"""`longboat graders` and `longboat environments`: the processes that run reward functions and play episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longboat_graders.environment import CONFIG_MAPS as ENVIRONMENT_CONFIG_MAPS
from longboat_graders.function import CONFIG_MAPS


def graders(
    socket: Annotated[Path, typer.Option(help="Unix socket to listen on.")],
    processes: Annotated[
        int, typer.Option(min=1, help="Grades that run at once, as far as the container's CPU quota allows.")
    ] = 1,
    config_maps: Annotated[Path, typer.Option(help="Directory with the files of rewards given by ConfigMap.")] = Path(
        CONFIG_MAPS
    ),
    parent: Annotated[
        int | None,
        typer.Option(
            hidden=True, help="Process that starts this one, without a container: see `longboat_graders.local`."
        ),
    ] = None,
) -> None:
    """Runs reward functions, each grade in a process that can be killed."""
    from longboat_graders import server

    if parent is None:
        server.main(socket, processes, config_maps)
    else:
        raise typer.Exit(server.serve_locally(socket, processes, config_maps, parent))


def environments(
    socket: Annotated[Path, typer.Option(help="Unix socket to listen on.")],
    config_maps: Annotated[
        Path, typer.Option(help="Directory with the files of environments given by ConfigMap.")
    ] = Path(ENVIRONMENT_CONFIG_MAPS),
    parent: Annotated[
        int | None,
        typer.Option(
            hidden=True, help="Process that starts this one, without a container: see `longboat_graders.local`."
        ),
    ] = None,
) -> None:
    """Plays episodes of environments, each in processes that can be killed."""
    from longboat_graders import episodes

    if parent is None:
        episodes.main(socket, config_maps)
    else:
        raise typer.Exit(episodes.serve_locally(socket, config_maps, parent))
