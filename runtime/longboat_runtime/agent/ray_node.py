"""Ray nodes with no more processes than a job needs: a raylet, actors and, on the head, Ray's server.

Ray starts others whatever its options say. With `--include-dashboard=false` a head still runs the dashboard's process, which then only
collects usage statistics. Every node runs a dashboard agent and an agent that creates runtime environments; jobs use neither. `ray.init`
also starts Ray's autoscaler and a reader of log files. Each of them imports most of Ray: together more CPU time than the rest of a
node's start, in every pod, and a hundred megabytes each for as long as the pod lives.

A raylet requires both agents' commands and ends when one of the agents does, so each has a stand-in: this file run as a program, which
waits for the raylet's end. Their port is given as -1, Ray's own value for an agent that serves nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_AGENTS = {"--dashboard_agent_command=": "dashboard", "--runtime_env_agent_command=": "runtime-env"}


@contextmanager
def bare_nodes() -> Iterator[None]:
    """Makes nodes that are started within the block do without processes that no job needs; a raylet's agents have stand-ins.

    Functions of Ray are replaced meanwhile, in this process.
    """
    from ray._private import services
    from ray._private.node import Node

    replaced: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = (
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
    """Returns a word of a command line of Ray's; one that gives the command of a raylet's agent gives its stand-in's instead."""
    for option, agent in _AGENTS.items():
        if word.startswith(option):
            return f'{option}"{sys.executable}" -I -S "{__file__}" {agent}'
    return word


def _with_ports(start: Any) -> Any:
    """Wraps `start` so that it first writes the files in which the raylet's agents leave their ports: the raylet waits for them."""
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
