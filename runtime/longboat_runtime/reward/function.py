"""A reward function named by a job's `rewards`: what graders need to know about it, and how it is found.

Imports nothing large: graders' processes are forks of one that holds this, and pay for what is mapped there.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from dataclasses import asdict, dataclass

from longboat_crds.reasons import Reason
from longboat_crds.reward_kinds import Credit, RewardKind, RewardSignature, TestCaseFormat
from longboat_runtime.problems import SpecProblem

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any

    from longboat_crds.rewards import RewardSpec, SandboxSpec

# Where the graders' container sees the ConfigMaps that rewards name: <root>/<ConfigMap>/<key>.
CONFIG_MAPS = "/etc/longboat/rewards"
# The seconds that a sandbox's case runner may need beyond those of its programs, to read long test cases, start and compare.
_OUTSIDE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class FunctionFile:
    """A Python file in a ConfigMap, and the function in it."""

    config_map: str
    key: str
    function: str


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """`rewards[].sandbox` with sizes in bytes. Without a `run_command` programs are Python."""

    format: TestCaseFormat
    file_name: str
    compile_command: tuple[str, ...] | None
    compile_seconds: float
    run_command: tuple[str, ...] | None
    credit: Credit
    max_cases: int
    memory: int
    processes: int
    file_size: int
    output_size: int

    @classmethod
    def from_spec(cls, spec: SandboxSpec) -> SandboxSettings:
        """Takes the settings from a spec."""
        from longboat_crds.quantities import in_bytes

        return cls(
            spec.format,
            spec.file_name,
            None if spec.compile_command is None else tuple(spec.compile_command),
            spec.compile_timeout_seconds,
            None if spec.run_command is None else tuple(spec.run_command),
            spec.credit,
            spec.max_cases,
            in_bytes(spec.memory),
            spec.processes,
            in_bytes(spec.file_size),
            in_bytes(spec.output_size),
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SandboxSettings:
        """Reads what `asdict` returned, also after a way through JSON."""
        commands = {name: value[name] and tuple(value[name]) for name in ("compile_command", "run_command")}
        return cls(
            **{**value, **commands, "format": TestCaseFormat(value["format"]), "credit": Credit(value["credit"])}
        )

    def longest_seconds(self, seconds: float) -> float:
        """Returns how many seconds a grade may take whose cases may take `seconds` each.

        It is a bound for what goes wrong outside of programs.
        """
        return self.compile_seconds + (self.max_cases + 1) * seconds + _OUTSIDE_SECONDS


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """`target` is `module:function` or `/path/file.py:function`; None with a `file`, and for ReasoningGym and Sandbox."""

    name: str
    kind: RewardKind
    signature: RewardSignature
    target: str | None
    file: FunctionFile | None
    parameters: Mapping[str, Any]
    sandbox: SandboxSettings | None = None

    @classmethod
    def from_spec(cls, reward: RewardSpec) -> RewardFunction:
        """Takes the part of `reward` that says what to call and how."""
        named = reward.config_map
        file = None if named is None else FunctionFile(named.name, named.key, named.function)
        sandbox = None if reward.sandbox is None else SandboxSettings.from_spec(reward.sandbox)
        return cls(reward.name, reward.kind, reward.signature, reward.function, file, reward.parameters, sandbox)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as a dict that can be written as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RewardFunction:
        """Reads what `to_json` returned, also after a way through JSON."""
        file = None if value["file"] is None else FunctionFile(**value["file"])
        kind, signature = RewardKind(value["kind"]), RewardSignature(value["signature"])
        sandbox = None if value["sandbox"] is None else SandboxSettings.from_json(value["sandbox"])
        return cls(value["name"], kind, signature, value["target"], file, value["parameters"], sandbox)


def load_function(
    reward: RewardFunction, field: str, config_maps: str | os.PathLike[str] = CONFIG_MAPS
) -> Callable[..., Any]:
    """Imports and returns the function. `field` is the spec path of the reward, for errors. Raises SpecProblem."""
    if reward.target is not None:
        target, _, name = reward.target.rpartition(":")
        at = f"{field}.function"
        module = _file(target, at) if target.startswith("/") else _module(target, at)
    elif reward.file is not None:
        name, at = reward.file.function, f"{field}.configMap"
        module = _file(os.path.join(config_maps, reward.file.config_map, reward.file.key), at)
    else:
        raise SpecProblem(
            Reason.REWARD_FUNCTION_NOT_FOUND,
            field,
            "No function is named. Set `function` or `configMap`, or `kind: ReasoningGym`.",
        )
    function = getattr(module, name, None)
    if function is None:
        # Imported only here: a process that finds its function needn't hold it in memory.
        import difflib

        available = sorted(n for n, value in vars(module).items() if callable(value) and not n.startswith("_"))
        close = difflib.get_close_matches(name, available, n=1)
        raise SpecProblem(
            Reason.REWARD_FUNCTION_NOT_FOUND,
            at,
            f"{_place(module)} has no function {name!r}.{f' Did you mean {close[0]!r}?' if close else ''} "
            f"It has {', '.join(available) or 'none'}.",
        )
    if not callable(function):
        raise SpecProblem(
            Reason.REWARD_FUNCTION_INVALID,
            at,
            f"{name!r} of {_place(module)} is a {type(function).__name__}, not a function.",
        )
    loaded: Callable[..., Any] = function
    return loaded


def _place(module: ModuleType) -> str:
    return module.__file__ or module.__name__


def _module(name: str, field: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise _failed(name, field, error) from error
        raise SpecProblem(
            Reason.REWARD_FUNCTION_NOT_FOUND,
            field,
            f"There is no module {error.name!r} where the graders run. Install it in the runtime's image, or give the file as "
            "`/path/file.py:function` or by `configMap`.",
        ) from error
    except Exception as error:
        raise _failed(name, field, error) from error


def _file(path: str, field: str) -> ModuleType:
    """Runs the file as a module; files beside it can be imported from it."""
    if not os.path.isfile(path):
        raise SpecProblem(
            Reason.REWARD_FUNCTION_NOT_FOUND,
            field,
            f"There is no file {path} where the graders run. Mount it in the runtime's `graders` container, or give it by `configMap`.",
        )
    stem = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(f"longboat_reward_{stem}", path)
    if spec is None or spec.loader is None:
        raise SpecProblem(Reason.REWARD_FUNCTION_INVALID, field, f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, os.path.dirname(path))
    # Dataclasses and pickles look their module up by name.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _failed(path, field, error) from error
    return module


def _failed(where: str, field: str, error: Exception) -> SpecProblem:
    """Returns the problem for the error that importing `where` ended in, with the line that raised it (but for a SyntaxError)."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    assert trace is not None
    line = (
        f" ({trace.tb_frame.f_code.co_filename} line {trace.tb_lineno})" if not isinstance(error, SyntaxError) else ""
    )
    return SpecProblem(
        Reason.REWARD_FUNCTION_INVALID, field, f"Importing {where} fails: {type(error).__name__}: {error}{line}."
    )
