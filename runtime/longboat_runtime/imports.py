"""Python's cyclic garbage collector while a process starts."""

from __future__ import annotations

import gc
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
