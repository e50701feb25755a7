"""Ray nodes of as few processes as a job needs: a raylet, on a head Ray's server too, and actors.

Ray starts others whatever it is told. With `--include-dashboard=false` a head still gets the dashboard's process, which then only
collects usage statistics. Each node gets an agent of the dashboard and one that makes environments for single actors; jobs use neither.
`ray.init` brings Ray's autoscaler and a reader of log files with it. All of them import most of Ray: together more CPU time than the
rest of a node's start, in every pod, and a hundred megabytes each for as long as the pod lives.

A raylet wants both agents' commands and ends when one of them does, so each has a stand-in: this file as a program, which waits for
the raylet's end. As their port it gets -1, Ray's own word for an agent that serves nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_AGENTS = {"--dashboard_agent_command=": "dashboard", "--runtime_env_agent_command=": "runtime-env"}


@contextmanager
def bare_nodes() -> Iterator[None]:
    """Ray nodes that this process starts within the block are such nodes. It replaces functions of Ray meanwhile."""
    from ray._private import services
    from ray._private.node import Node

    replaced = (
        (services, "start_api_server", lambda _: lambda *arguments, **options: ("", None)),
        (services, "start_ray_process", _with_stand_ins),
        (Node, "start_raylet", _with_ports),
        (Node, "start_monitor", lambda _: lambda node: None),
        (Node, "start_log_monitor", lambda _: lambda node: None),
    )
    originals = [getattr(owner, name) for owner, name, _ in replaced]
    for (owner, name, wrap), original in zip(replaced, originals, strict=True):
        setattr(owner, name, wrap(original))
    try:
        yield
    finally:
        for (owner, name, _), original in zip(replaced, originals, strict=True):
            setattr(owner, name, original)


def _with_stand_ins(start: Any) -> Any:
    def start_process(command: list[str], *arguments: Any, **options: Any) -> Any:
        return start([_stand_in(word) for word in command], *arguments, **options)

    return start_process


def _stand_in(word: str) -> str:
    """A word of a command line; the raylet's holds the agents' commands."""
    for option, agent in _AGENTS.items():
        if word.startswith(option):
            return f'{option}"{sys.executable}" -I -S "{__file__}" {agent}'
    return word


def _with_ports(start: Any) -> Any:
    """The raylet waits for the files in which its agents leave their ports."""
    from ray import _raylet

    compiled: Any = _raylet
    names = (
        compiled.DASHBOARD_AGENT_LISTEN_PORT_NAME,
        compiled.METRICS_AGENT_PORT_NAME,
        compiled.METRICS_EXPORT_PORT_NAME,
        compiled.RUNTIME_ENV_AGENT_PORT_NAME,
    )

    def start_raylet(node: Any, *arguments: Any, **options: Any) -> None:
        for name in names:
            compiled.persist_port(node._session_dir, node._node_id, name, -1)
        start(node, *arguments, **options)

    return start_raylet


if __name__ == "__main__":
    sys.stdin.read()  # a pipe whose other end the raylet holds
