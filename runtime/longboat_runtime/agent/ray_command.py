"""The command line of `ray start`, and its environment. Pure."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from longboat_runtime.object_store import MINIMAL_OBJECT_STORE


@dataclass(frozen=True, slots=True)
class RayPorts:
    """Ports of a Ray node; 0 lets Ray choose. The defaults are those that the operator opens."""

    head: int = 6379
    node_manager: int = 6380
    object_manager: int = 6381
    dashboard_agent: int = 52365


@dataclass(frozen=True, slots=True)
class RayNode:
    """One Ray node. `resources` are custom ones; Ray's own CPUs are 0, as actors ask for roles. `object_store` is in bytes."""

    ip: str
    resources: Mapping[str, int]
    labels: Mapping[str, str]
    ports: RayPorts = field(default_factory=RayPorts)
    object_store: int = MINIMAL_OBJECT_STORE
    temp_dir: str = "/tmp/ray"  # noqa: S108 - Ray's own


def head_command(node: RayNode) -> list[str]:
    """Builds the command `ray start --head`, which stays in the foreground."""
    head = [
        "--head",
        f"--port={node.ports.head}",
        f"--temp-dir={node.temp_dir}",
        "--no-monitor",
        "--include-dashboard=false",
    ]
    return [*_RAY_START, *head, *_common(node)]


def worker_command(node: RayNode, head: str) -> list[str]:
    """Builds the `ray start` command that joins `head` (host:port) and stays in the foreground."""
    return [*_RAY_START, f"--address={head}", *_common(node)]


_RAY_START = [sys.executable, "-m", "longboat_runtime.agent.ray_cli", "start"]

# Workers inherit these. Ray's own niceness (15) would put engines and trainers behind everything else in their container, and
# OpenMP threads that spin for milliseconds, as they do by default, slow a parallel region twentyfold once they share their CPUs.
WORKERS = {"RAY_worker_niceness": "0", "GOMP_SPINCOUNT": "20000"}
# Ray makes its directory of event logs for its own user alone, whatever the umask, and a driver of another user that can't write
# there aborts (RayEventInit). Only Ray's dashboard reads them.
ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_event_log_reporter_enabled": "0", **WORKERS}


def _common(node: RayNode) -> list[str]:
    return [
        "--block",
        "--disable-usage-stats",
        "--num-cpus=0",
        f"--node-ip-address={node.ip}",
        f"--node-manager-port={node.ports.node_manager}",
        f"--object-manager-port={node.ports.object_manager}",
        f"--dashboard-agent-listen-port={node.ports.dashboard_agent}",
        f"--object-store-memory={node.object_store}",
        f"--resources={json.dumps(dict(node.resources))}",
        f"--labels={','.join(f'{key}={value}' for key, value in node.labels.items())}",
        "--include-log-monitor=false",
    ]
