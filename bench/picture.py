"""Pictures of benchmarks as SVG: the same values give the same file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def picture(path: Path, *, rows: int = 1, columns: int, width: float, height: float) -> Iterator[tuple[Any, Any]]:
    """Yields a figure and its panels [rows, columns], each `width` x `height` inches; writes it to `path` unless the block raises."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    with mpl.rc_context({"svg.hashsalt": path.name}):
        figure, panels = plt.subplots(
            rows, columns, figsize=(width * columns, height * rows), squeeze=False, layout="constrained"
        )
        yield figure, panels
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
