"""The file in which `longboat profile` stores what engines of each size take."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.rollout.protocol import ReshapePhase
from longboat_runtime.rollout.throughput import EngineModel, Profile

FIELD = "spec.rollout.parallelism.profile"
_CURE = "measure the job's engines with `longboat profile`, and name the file that it writes"

# What engines' steps and their KV cache depend on: entries of config.json by standard names.
_DIMENSIONS = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "moe_intermediate_size",
    "vocab_size",
)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProfiledEngine(_Part):
    """An engine of one size (see EngineModel), and the seconds by phase that a change to such engines takes."""

    kv_tokens: int = Field(ge=1)
    prefill_seconds: float = Field(ge=0)
    sequences: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]
    reshape_seconds: dict[ReshapePhase, float]

    @classmethod
    def from_model(cls, model: EngineModel, reshape_seconds: Mapping[ReshapePhase, float]) -> ProfiledEngine:
        """Makes an engine of this `model`, whose `block_tokens` aren't kept."""
        return cls(
            kv_tokens=model.kv_tokens,
            prefill_seconds=model.prefill_seconds,
            sequences=model.sequences,
            contexts=model.contexts,
            seconds=model.seconds,
            reshape_seconds=dict(reshape_seconds),
        )

    @property
    def model(self) -> EngineModel:
        return EngineModel(self.kv_tokens, self.prefill_seconds, self.sequences, self.contexts, self.seconds)

    @model_validator(mode="after")
    def _check(self) -> ProfiledEngine:
        _ = self.model
        return self


class ProfileFile(_Part):
    """Engines by their number of devices. `engine` is what they depend on (`identity`); `model` is the path that it was at, for people."""

    version: Literal[1] = 1
    model: str
    engine: dict[str, int | str | bool | None]
    engines: dict[int, ProfiledEngine] = Field(min_length=1)

    @property
    def profile(self) -> Profile:
        """The part that the plan of shapes needs."""
        return Profile(
            {size: engine.model for size, engine in self.engines.items()},
            {size: sum(engine.reshape_seconds.values()) for size, engine in self.engines.items()},
        )

    def write(self, path: Path) -> None:
        """Replaces the file at once, or leaves it alone."""
        part = path.with_name(f".{path.name}.part")
        with part.open("w") as file:
            file.write(self.model_dump_json(indent=1))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)


def identity(config: EngineConfig, model: Mapping[str, Any]) -> dict[str, int | str | bool | None]:
    """Returns what engines have to share, besides their size, for a profile to hold for them: dimensions and settings (pure).

    `model` is config.json by standard names. Its path and its weights don't matter.
    """
    dimensions = {name: model[name] for name in _DIMENSIONS if model.get(name) is not None}
    settings = ("dtype", "kv_cache_bytes", "device_memory", "enforce_eager", "max_sequences")
    return dimensions | {name: getattr(config, name) for name in settings}


def read_profile(path: str, expected: Mapping[str, int | str | bool | None], sizes: Collection[int]) -> Profile:
    """Reads the profile of engines whose `identity` is `expected`, of at least these sizes.

    Raises SpecProblem if the file can't be read, isn't a profile, is one of other engines, or lacks a size.
    """
    try:
        profile = ProfileFile.model_validate_json(Path(path).read_bytes())
    except OSError as error:
        raise _problem(f"{path} can't be read ({error.strerror})") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise _problem(f"{path} isn't a profile ({where}: {first['msg']})") from error
    differing = [name for name in {**expected, **profile.engine} if expected.get(name) != profile.engine.get(name)]
    if differing:
        name = differing[0]
        raise _problem(
            f"{path} was measured with {name} {profile.engine.get(name)}, the job has {expected.get(name)}"
            + (f" (and {len(differing) - 1} other differences)" if differing[1:] else "")
        )
    if missing := sorted(set(sizes) - profile.engines.keys()):
        names = ", ".join(map(str, missing))
        raise _problem(f"{path} lacks engines of {names} devices, which rollout.parallelism allows")
    return profile.profile


def _problem(what: str) -> SpecProblem:
    return SpecProblem(Reason.PROFILE_INVALID, FIELD, f"{what}; {_CURE}")
