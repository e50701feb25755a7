"""Reward and response length by step, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from longboat_runtime.metrics.record import Record, read_records

PICTURE = "progress.png"
_PANELS = {
    "reward": ("critic/score/mean", "val/score/mean"),
    "response length (tokens)": ("response_length/mean", "response_length/p90", "response_length/max"),
}


def draw(root: Path) -> Path:
    """Draws what the job below `root` recorded into `root`/progress.png, and returns its path."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    records = read_records(root)
    figure, axes = pyplot.subplots(len(_PANELS), 1, figsize=(8, 6), sharex=True, layout="constrained")
    for panel, (title, names) in zip(axes, _PANELS.items(), strict=True):
        for name in names:
            steps, values = points(records, name)
            if steps:
                panel.plot(steps, values, marker=".", label=name)
        panel.set_ylabel(title)
        panel.grid(alpha=0.3)
        if panel.lines:
            panel.legend()
    axes[-1].set_xlabel("step")
    file = root / PICTURE
    figure.savefig(file, dpi=110)
    pyplot.close(figure)
    return file


def points(records: Sequence[Record], name: str) -> tuple[list[int], list[float]]:
    """Returns the steps and values of one metric, where it was recorded (pure)."""
    values = [(record.step, record.metrics[name]) for record in records if name in record.metrics]
    return [step for step, _ in values], [value for _, value in values]
