"""Imports large packages with less work, and without the parts that a process doesn't need."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Turns the collector off, and excludes from later collections all objects that exist at the end.

    Importing torch or vLLM creates up to more than a million objects that are never freed. The collector would traverse them again and
    again while their number grows, which takes up to a quarter of the import's CPU time, and later at every full collection.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.freeze()
        if was_enabled:
            gc.enable()


@contextmanager
def without_module(name: str) -> Iterator[None]:
    """Makes importing `name` fail within the block, so that packages for which it is optional do without it.

    Does nothing if it has been imported already.
    """
    hidden = name not in sys.modules
    if hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if hidden:
            del sys.modules[name]
