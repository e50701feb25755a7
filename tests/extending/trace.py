"""Follows one sample through the functions of the runtime.

A function has the sample **in hand** if the sample's name (its SampleId, or the PromptId of its group), its row, its response, or
something made of them is among its arguments or in what it returns: by itself, or inside dataclasses of the runtime, tuples, lists,
sets, dicts and partial calls. Made of them are records, with what they hold, arrays and tensors that a function returns which has
the sample in hand, so a sample is followed into a batch of tensors. A function that calls such a one has the sample in hand too, since it gives or gets it.
What is only a number (a reward, a count of tokens, a place in a list) isn't followed: a function of numbers knows nothing of samples.

* A **hop** is a function that has the sample in hand, counted once, where that is first so. What has no name of its own
  (comprehensions, lambdas) is part of the function around it, and a property is read as a field of its object. The driver's observers
  are no part of the way: they note events beside it.
* A **file** is one with a hop.
* An **entry** into a package is a hop in it that follows one in another package.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from inspect import CO_VARARGS, CO_VARKEYWORDS
from itertools import islice, pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np
import torch

import longboat_runtime
import longboat_runtime.driver.observers
from longboat_runtime.driver.observer import Observer
from longboat_runtime.samples import PromptId, SampleId

SOURCES = Path(longboat_runtime.__file__).parents[1]
PACKAGES = ("longboat_runtime/", "longboat_graders/")

# How far is looked into what a function is handed, and at how many items of each part.
DEPTH = 5
ITEMS = 64

_ARRAYS = (np.ndarray, torch.Tensor)
_BESIDE = {observer.on.__code__ for observer in Observer.__subclasses__()}
_NAMELESS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>")


@dataclass(frozen=True, slots=True)
class Hop:
    """A function of the runtime or of the graders: its file as docs/extending.md shortens it, and its name there."""

    file: str
    name: str

    @property
    def package(self) -> str:
        return self.file.split("/")[0].removesuffix(".py")


@dataclass(frozen=True, slots=True)
class Followed:
    """The sample, and texts that no other one has: those of its prompt and of its response."""

    sample: SampleId
    texts: tuple[str, ...]


class _Function(NamedTuple):
    """`body` tells the ledger's handlers of events apart, all of which are called `_`."""

    code: CodeType
    body: str = ""


class Trace:
    """Notes the functions that have the sample in hand, in every thread, until one named `last` has returned.

    Functions of `stands` (by qualified name) are no part of the runtime: they stand for something, and are noted as such.
    """

    def __init__(self, followed: Followed, last: str, stands: Mapping[str, str]) -> None:
        self._followed, self._last, self._stands = followed, last, stands
        self._count = 0
        self._calls: dict[FrameType, int] = {}  # by frame: the number of the call, or of the last time that it went on
        self._noted: dict[_Function, float] = {}
        self._made: dict[int, Any] = {}  # by id; kept alive, so that nothing else gets it
        self._lock = threading.Lock()
        self.done = False

    @property
    def way(self) -> list[Hop | str]:
        """Hops in their order, and between them what stands for what."""
        found: dict[Hop | str, None] = {}
        for code, body in sorted(self._noted, key=self._noted.__getitem__):
            if code.co_qualname in self._stands:
                found[self._stands[code.co_qualname]] = None
            else:
                name = code.co_qualname.replace("<locals>.", "") + (f"({body})" if body else "")
                found[Hop(_shortened(code.co_filename), name)] = None
        return list(found)

    @contextmanager
    def following(self) -> Iterator[None]:
        """Within the block."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            self.done = True
            sys.setprofile(None)
            threading.setprofile(None)

    def _profile(self, frame: FrameType, event: str, result: Any) -> None:
        if self.done or event not in ("call", "return") or not self._is_followed(frame):
            return
        with self._lock:
            if event == "call":
                self._count += 1
                begins = frame not in self._calls
                self._calls[frame] = self._count
                if begins and self._carries(_arguments(frame)):
                    self._note(frame)
                return
            if self._carries(result):
                self._note(frame)
            if _function(_named(frame)) in self._noted:
                self._keep(result)
                self.done = frame.f_code.co_name == self._last

    def _is_followed(self, frame: FrameType) -> bool:
        return _ours(frame) or frame.f_code.co_qualname in self._stands

    def _note(self, frame: FrameType) -> None:
        if _is_property(frame):
            return
        number = self._calls.get(frame, 0)
        caller = frame.f_back
        while caller is not None and not self._is_followed(caller):
            caller = caller.f_back
        if caller is not None:
            self._add(caller, number - 0.5)
        self._add(frame, number)

    def _add(self, frame: FrameType, number: float) -> None:
        frame = _named(frame)
        if not _is_property(frame) and frame.f_code not in _BESIDE:
            self._noted.setdefault(_function(frame), number)

    def _keep(self, result: Any) -> None:
        for value in result if isinstance(result, tuple) else (result,):
            made = [value, *_parts(value)] if _is_record(value) else [value]
            self._made.update({id(one): one for one in made if _is_record(one) or isinstance(one, _ARRAYS)})

    def _carries(self, value: Any, depth: int = DEPTH) -> bool:
        if id(value) in self._made:
            return True
        match value:
            case SampleId():
                return value == self._followed.sample
            case PromptId():
                return value == self._followed.sample.prompt
            case str():
                return value in self._followed.texts
        return depth > 0 and any(self._carries(part, depth - 1) for part in islice(_parts(value), ITEMS))


def counts(way: Sequence[Hop | str]) -> tuple[int, int, int]:
    """Hops, files, and entries into `driver`."""
    hops = [hop for hop in way if isinstance(hop, Hop)]
    packages = ["", *(hop.package for hop in hops)]
    entries = sum(now == "driver" != before for before, now in pairwise(packages))
    return len(hops), len({hop.file for hop in hops}), entries


def _ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(tuple(f"{SOURCES}/{package}" for package in PACKAGES))


def _named(frame: FrameType) -> FrameType:
    """The frame itself, or that of the function around a comprehension or a lambda."""
    while frame.f_code.co_name in _NAMELESS and frame.f_back is not None and _ours(frame.f_back):
        frame = frame.f_back
    return frame


def _function(frame: FrameType) -> _Function:
    code = frame.f_code
    return _Function(code, type(frame.f_locals[code.co_varnames[1]]).__name__ if code.co_name == "_" else "")


def _is_property(frame: FrameType) -> bool:
    """Whether the function is the getter of a property of its first argument."""
    code = frame.f_code
    if not code.co_argcount or code.co_varnames[0] != "self":
        return False
    found = getattr(type(frame.f_locals.get("self")), code.co_name, None)
    return isinstance(found, property) and found.fget is not None and found.fget.__code__ is code


def _arguments(frame: FrameType) -> list[Any]:
    code = frame.f_code
    packed = bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + packed]
    return [frame.f_locals[name] for name in names if name in frame.f_locals]


def _shortened(file: str) -> str:
    return str(Path(file).relative_to(SOURCES)).removeprefix("longboat_runtime/").removeprefix("longboat_")


def _is_record(value: Any) -> bool:
    return (
        is_dataclass(value)
        and not isinstance(value, type)
        and type(value).__module__.startswith(("longboat_runtime", "longboat_graders"))
    )


def _parts(value: Any) -> Iterator[Any]:
    """What is inside of it."""
    if isinstance(value, partial):
        yield from value.args
    elif isinstance(value, Mapping):
        yield from value.keys()
        yield from value.values()
    elif isinstance(value, (tuple, list, set, frozenset, deque)):
        yield from value
    elif _is_record(value):
        yield from (getattr(value, field.name) for field in fields(value) if hasattr(value, field.name))
