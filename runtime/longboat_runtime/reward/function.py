"""What graders need to know about a RewardSpec. Pure.

Imports nothing large: every grade forks a process that holds this, and pays for what is mapped there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from longboat_crds.reward_style import RewardStyle

if TYPE_CHECKING:
    from longboat_crds.rewards import RewardSpec


@dataclass(frozen=True, slots=True)
class FunctionFile:
    """A Python file in a ConfigMap, and the function in it."""

    config_map: str
    key: str
    function: str


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """`target` is `module:function` or `/path/file.py:function`; None with a `file`, and for ReasoningGym."""

    name: str
    style: RewardStyle
    target: str | None
    file: FunctionFile | None
    parameters: Mapping[str, Any]

    @classmethod
    def of(cls, reward: RewardSpec) -> RewardFunction:
        """The part of `reward` that says what to call and how."""
        named = reward.config_map
        file = None if named is None else FunctionFile(named.name, named.key, named.function)
        return cls(reward.name, reward.style, reward.function, file, reward.parameters)

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RewardFunction:
        """The inverse of `to_json`."""
        file = None if value["file"] is None else FunctionFile(**value["file"])
        return cls(value["name"], RewardStyle(value["style"]), value["target"], file, value["parameters"])
