"""Finds the functions that a job's `rewards` and `environments` name, and imports them.

Imports nothing large: graders' processes are forks of one that holds this, and pay for what is mapped there.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass

from longboat_crds.problems import SpecProblem, suggestion
from longboat_crds.reasons import Reason

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from longboat_graders.messages import FunctionFile

# Where the graders' container sees the ConfigMaps that rewards name: <root>/<ConfigMap>/<key>.
CONFIG_MAPS = "/etc/longboat/rewards"


@dataclass(frozen=True, slots=True)
class Wording:
    """Says what a function is loaded for: the reasons of its problems, where it runs, and how modules and files get there."""

    not_found: Reason
    invalid: Reason
    place: str
    install: str
    mount: str
    unnamed: str


REWARD = Wording(
    Reason.REWARD_FUNCTION_NOT_FOUND,
    Reason.REWARD_FUNCTION_INVALID,
    "where the graders run",
    "Install it in the image of the graders (`gradersImage` of the runtime template)",
    "Mount it in the runtime template's `graders` container",
    "Set `function` or `configMap`, or `kind: ReasoningGym`",
)


def load_function(
    target: str | None,
    file: FunctionFile | None,
    field: str,
    config_maps: str | os.PathLike[str] = CONFIG_MAPS,
    wording: Wording = REWARD,
) -> Callable[..., Any]:
    """Imports and returns the function that `target` (`module:function`, `/path/file.py:function`) or `file` names.

    `field` is the spec path of what names it, for errors. Raises SpecProblem.
    """
    if target is not None:
        place, _, name = target.rpartition(":")
        at = f"{field}.function"
        module = _file(place, at, wording) if place.startswith("/") else _module(place, at, wording)
    elif file is not None:
        name, at = file.function, f"{field}.configMap"
        module = _file(os.path.join(config_maps, file.config_map, file.key), at, wording)
    else:
        raise SpecProblem(wording.not_found, field, f"No function is named. {wording.unnamed}.")
    function = getattr(module, name, None)
    if function is None:
        available = sorted(n for n, value in vars(module).items() if callable(value) and not n.startswith("_"))
        raise SpecProblem(
            wording.not_found,
            at,
            f"{_place(module)} has no function {name!r}.{suggestion(name, available)} "
            f"It has {', '.join(available) or 'none'}.",
        )
    if not callable(function):
        raise SpecProblem(
            wording.invalid,
            at,
            f"{name!r} of {_place(module)} is a {type(function).__name__}, not a function.",
        )
    loaded: Callable[..., Any] = function
    return loaded


def _place(module: ModuleType) -> str:
    return module.__file__ or module.__name__


def _module(name: str, field: str, wording: Wording) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise _failed(name, field, error, wording) from error
        raise SpecProblem(
            wording.not_found,
            field,
            f"There is no module {error.name!r} {wording.place}. {wording.install}, or give the file as `/path/file.py:function` or by "
            "`configMap`.",
        ) from error
    except Exception as error:
        raise _failed(name, field, error, wording) from error


def _file(path: str, field: str, wording: Wording) -> ModuleType:
    """Runs the file as a module; files beside it can be imported from it."""
    if not os.path.isfile(path):
        raise SpecProblem(
            wording.not_found,
            field,
            f"There is no file {path} {wording.place}. {wording.mount}, or give it by `configMap`.",
        )
    stem = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(f"longboat_reward_{stem}", path)
    if spec is None or spec.loader is None:
        raise SpecProblem(wording.invalid, field, f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, os.path.dirname(path))
    # Dataclasses and pickles look their module up by name.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _failed(path, field, error, wording) from error
    return module


def _failed(where: str, field: str, error: Exception, wording: Wording) -> SpecProblem:
    """Returns the problem for the error that importing `where` ended in, with the line that raised it (but for a SyntaxError)."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    assert trace is not None
    line = (
        f" ({trace.tb_frame.f_code.co_filename} line {trace.tb_lineno})" if not isinstance(error, SyntaxError) else ""
    )
    cure = f" {wording.install}." if isinstance(error, ModuleNotFoundError) else ""
    return SpecProblem(wording.invalid, field, f"Importing {where} fails: {type(error).__name__}: {error}{line}.{cure}")
