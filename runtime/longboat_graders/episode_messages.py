"""Defines what the `episodes` container and the server of the `environment` container say to each other over their Unix socket.

Requests are {id, op, ...}; each is answered by {id, ...}:
    load  {function, field}                        -> {problem: null}, or {problem: [reason, field, message, fatal]}
    play  {environment: name, launch} + task       -> {result}; that the environment's code begins is told before by {id, begun}
    state {}                                       -> {playing, unenforced, environments: {name: footprint}}
An episode is stopped by {id, op: stop} with its id; the answer to its `play` comes once nothing is left of it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import StrEnum

from longboat_graders.messages import FunctionFile

TYPE_CHECKING = False  # `typing` itself would be in the memory of every episode
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# Longest message of a result, and of the output with it, in characters.
MESSAGE_CHARACTERS = 4000
OUTPUT_CHARACTERS = 4000


@dataclass(frozen=True, slots=True)
class EnvironmentFunction:
    """Names an environment's code: `target` is `module:function` or `/path/file.py:function`, None with a `file`."""

    name: str
    target: str | None
    file: FunctionFile | None

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as a dict that can be written as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> EnvironmentFunction:
        """Reads what `to_json` returned, also after a way through JSON."""
        file = None if value["file"] is None else FunctionFile(**value["file"])
        return cls(value["name"], value["target"], file)


@dataclass(frozen=True, slots=True)
class EpisodeBounds:
    """Bounds of an episode: bytes of memory, processes and threads, bytes in a file and in its directory, seconds of the wall clock."""

    memory: int
    processes: int
    file_size: int
    wall_seconds: float


@dataclass(frozen=True, slots=True)
class Launch:
    """Says how an episode is launched: the model's endpoint and the secret that it takes (`api_key`), the model's name there, and bounds.

    `seed` (not negative) is for the global random number generators.
    """

    base_url: str
    api_key: str
    model: str
    seed: int
    bounds: EpisodeBounds

    def __repr__(self) -> str:
        return f"Launch({self.model} at {self.base_url})"

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as a dict that can be written as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Launch:
        """Reads what `to_json` returned, also after a way through JSON."""
        return cls(**{**value, "bounds": EpisodeBounds(**value["bounds"])})


class EpisodeEnd(StrEnum):
    """How an episode ended.

    FINISHED: it returned. ERROR: it raised, or returned what is no reward. LOST: its process ended, reached a bound, or went with its
    server. STOPPED: as it was asked to.
    """

    FINISHED = "finished"
    ERROR = "error"
    LOST = "lost"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """The result of an episode.

    `reward` is None if the environment returned none, and for all that isn't FINISHED; `rewards` are those of its turns if it
    returned them, whose sum is `reward`. `message` says what went wrong, with the end of a traceback. `output` is the end of what it
    printed. `seconds` are of the wall clock, `cpu_seconds` of all its processes that had ended and been waited for. `server_gone` says of one
    that is LOST that its server went or can't be reached, which says nothing about the episode.
    """

    end: EpisodeEnd
    reward: float | None = None
    rewards: tuple[float, ...] | None = None
    message: str = ""
    output: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    server_gone: bool = False

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as a dict that can be written as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> EpisodeResult:
        """Reads what `to_json` returned, also after a way through JSON."""
        rewards = value["rewards"]
        return cls(**{**value, "end": EpisodeEnd(value["end"]), "rewards": None if rewards is None else tuple(rewards)})


@dataclass(frozen=True, slots=True)
class Reward:
    """What an environment returned: one reward, one for each turn, or neither."""

    reward: float | None
    rewards: tuple[float, ...] | None = None


def as_reward(value: Any) -> Reward:
    """Reads what an environment returned: a number, a list of numbers (one for each turn), or None. Pure.

    Numbers are also those of numpy and torch, and arrays of them are lists. Raises TypeError or ValueError, naming what came, otherwise.
    """
    if value is None:
        return Reward(None)
    if hasattr(value, "shape") and hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, (list, tuple)):
        return Reward(_number(value, "the environment returned"))
    rewards = tuple(
        _number(item, f"the environment returned a list whose item {index} is") for index, item in enumerate(value)
    )
    return Reward(math.fsum(rewards), rewards)


def _number(value: Any, what: str) -> float:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(
            f"{what} {_described(value)}; return a number, a list with a number for each turn, or None if rewards grade the episode"
        )
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{what} {number}; a reward is a finite number")
    return number


def _described(value: Any) -> str:
    text = repr(value)
    return f"a {type(value).__name__}, {text if len(text) <= 200 else text[:200] + '...'}"
