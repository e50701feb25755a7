"""Python's cyclic garbage collector, and the start of a process that imports much."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_off() -> Iterator[None]:
    """Nothing is collected meanwhile; what exists at the end is never looked at again.

    Importing vLLM makes more than a million objects that all stay. The collector looks at all of them again and again as
    they grow in number, a quarter of the CPU time of the import, and later at every full collection.
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
