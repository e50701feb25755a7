"""Recognizes where the doctor runs: in a container of a job's pod, by the command line of its first process, or anywhere else."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

# How the operator names the containers of its pods, by the agent's role.
_CONTAINERS = {"head": "ray-head", "environment": "episodes"}
# The containers with the user's own code, by their command.
_WITH_CODE = {"graders": "graders", "environments": "environment"}
_DRIVERS_HEAD = "127.0.0.1:6379"


@dataclass(frozen=True, slots=True)
class Place:
    """`container` is None outside a job's pods. `head` is the address of the Ray head that it belongs to.

    `offers` counts the devices that its agent offers to engines or trainers; 0 for others.
    """

    container: str | None = None
    head: str | None = None
    offers: int = 0
    pod: str = ""
    node: str = ""

    @property
    def computes(self) -> bool:
        """Whether models are computed here."""
        return self.container in {"rollout", "trainer"}

    def __str__(self) -> str:
        if self.container is None:
            return "this machine, in no pod of a job"
        node = f" on node {self.node}" if self.node else ""
        return f"container {self.container} of pod {self.pod}{node}"


def place(commands: Iterable[Sequence[str]], environment: Mapping[str, str]) -> Place:
    """Returns the place of a process with this `environment`, in a container that runs `commands`. Pure.

    The operator sets POD_NAME and starts `longboat agent ROLE`, `longboat graders` or `longboat environments`.
    """
    pod = environment.get("POD_NAME")
    if pod is None:
        return Place()
    node = environment.get("NODE_NAME", "")
    for command in commands:
        words = list(command)
        if "agent" in words[:-1]:
            role = words[words.index("agent") + 1]
            options = dict(pairwise(words))
            head = options.get("--head", _DRIVERS_HEAD if role in {"driver", "head"} else None)
            offers = options.get({"rollout": "--devices", "trainer": "--slots"}.get(role, ""), "0")
            return Place(_CONTAINERS.get(role, role), head, int(offers), pod, node)
        for word in words[:4]:
            if word in _WITH_CODE:
                return Place(_WITH_CODE[word], pod=pod, node=node)
    return Place("other", pod=pod, node=node)


def own_place() -> Place:
    """Returns the place of this process. Containers may share a process namespace, so only processes of its own cgroup count."""
    return place(_commands(), os.environ)


def _commands() -> Iterator[list[str]]:
    own = Path("/proc/self/cgroup").read_text()
    for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        with suppress(OSError):
            if int(process.name) != os.getpid() and (process / "cgroup").read_text() == own:
                yield (process / "cmdline").read_text(errors="replace").rstrip("\0").split("\0")
