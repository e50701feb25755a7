"""Finds the reward functions that a job's `rewards` name, and imports them.

Imports nothing large: graders' processes are forks of one that holds this, and pay for what is mapped there.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

from longboat_crds.problems import SpecProblem, suggestion
from longboat_crds.reasons import Reason

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from longboat_graders.messages import RewardFunction

# Where the graders' container sees the ConfigMaps that rewards name: <root>/<ConfigMap>/<key>.
CONFIG_MAPS = "/etc/longboat/rewards"
_INSTALL = "Install it in the image of the graders (`gradersImage` of the runtime template)"


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
        available = sorted(n for n, value in vars(module).items() if callable(value) and not n.startswith("_"))
        raise SpecProblem(
            Reason.REWARD_FUNCTION_NOT_FOUND,
            at,
            f"{_place(module)} has no function {name!r}.{suggestion(name, available)} "
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
            f"There is no module {error.name!r} where the graders run. {_INSTALL}, or give the file as `/path/file.py:function` or by "
            "`configMap`.",
        ) from error
    except Exception as error:
        raise _failed(name, field, error) from error


def _file(path: str, field: str) -> ModuleType:
    """Runs the file as a module; files beside it can be imported from it."""
    if not os.path.isfile(path):
        raise SpecProblem(
            Reason.REWARD_FUNCTION_NOT_FOUND,
            field,
            f"There is no file {path} where the graders run. Mount it in the runtime template's `graders` container, or give it by `configMap`.",
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
    cure = f" {_INSTALL}." if isinstance(error, ModuleNotFoundError) else ""
    return SpecProblem(
        Reason.REWARD_FUNCTION_INVALID, field, f"Importing {where} fails: {type(error).__name__}: {error}{line}.{cure}"
    )
