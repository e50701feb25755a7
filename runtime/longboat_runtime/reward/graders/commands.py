"""`longboat graders`: the process that runs reward functions."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from longboat_runtime.reward.function import CONFIG_MAPS


def graders(
    socket: Annotated[Path, typer.Option(help="Unix socket to listen on.")],
    processes: Annotated[
        int, typer.Option(min=1, help="Grades that run at once, as far as the container's CPU quota allows.")
    ] = 1,
    config_maps: Annotated[Path, typer.Option(help="Directory with the files of rewards given by ConfigMap.")] = Path(
        CONFIG_MAPS
    ),
    parent: Annotated[int | None, typer.Option(hidden=True, help="Process that started this one: end with it.")] = None,
) -> None:
    """Runs reward functions, each grade in a process that can be killed."""
    from longboat_runtime import prctl
    from longboat_runtime.cgroup import CGROUP_ROOT
    from longboat_runtime.reward.graders.server import main

    if parent is not None:
        prctl.die_with_parent(signal.SIGTERM)
        if os.getppid() != parent:
            return
    # Without a container of their own they share a quota with the process that started them.
    main(socket, processes, config_maps, None if parent is not None else CGROUP_ROOT)
