"""A timeline as a PNG."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from longboat_runtime.timeline.axis import Axis
from longboat_runtime.timeline.bars import Timeline
from longboat_runtime.timeline.labels import FULL, title
from longboat_runtime.timeline.rows import Lane, lanes

PICTURE = "timeline.png"
_DPI = 110
# Inches that a row of samples, a lane and the trainer's part are high.
_ROW, _LANE, _WORKS = 0.016, 0.3, 0.5
# Inches around the panels: names of lanes, and captions, axis and legend.
_BESIDE, _AROUND = 1.5, 1.8
_WIDTHS, _HEIGHTS = (8.0, 40.0), (2.5, 16.0)
# Rounds that are opened within so many seconds are opened at once.
_AT_ONCE = 0.05


def draw(timeline: Timeline, file: Path, job: str) -> None:
    """Draws rounds (at least one) of the job named `job`: lanes of samples, below them the trainer. Raises OSError."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    from longboat_runtime.timeline.panels import draw_gaps, draw_rounds, draw_samples, draw_works

    axis, found = Axis.of(timeline), lanes(timeline.rounds)
    width, height = _width(timeline, axis), _height(found)
    size = width + _BESIDE, height + _WORKS + _AROUND
    heights = height, _WORKS
    figure, panels = pyplot.subplots(2, 1, figsize=size, sharex=True, layout="constrained", height_ratios=heights)
    handles = draw_samples(panels[0], found, axis, height) + draw_works(panels[1], timeline, axis)
    handles += draw_rounds(panels, timeline, axis, width) + draw_gaps(panels, timeline, axis)
    panels[1].set_xlim(0, max(axis.at(timeline.end), 1e-3))
    opened = datetime.fromtimestamp(timeline.start, UTC)
    first = timeline.rounds[0].number
    panels[1].set_xlabel(f"seconds since round {first} was opened ({opened:%Y-%m-%d %H:%M:%S} UTC)")
    figure.suptitle(title(job, timeline.rounds), x=0.01, ha="left", fontweight="bold")
    figure.legend(handles=handles, loc="outside lower left", ncols=5, frameon=False, fontsize=9)
    try:
        figure.savefig(file, format="png", dpi=_DPI, bbox_inches="tight", pad_inches=0.15)
    finally:
        pyplot.close(figure)


def _width(timeline: Timeline, axis: Axis) -> float:
    """Inches of the panels: the narrowest round has room for its caption, if there aren't too many rounds.

    Rounds that are opened at once stand in one place, however wide that is.
    """
    opened = [axis.at(round_.opened) for round_ in timeline.rounds] + [axis.at(timeline.end)]
    widths = [later - earlier for earlier, later in pairwise(opened) if later - earlier > _AT_ONCE]
    width = opened[-1] / min(widths) * FULL if widths else 0.0
    return min(max(width, _WIDTHS[0]), _WIDTHS[1])


def _height(found: Sequence[Lane]) -> float:
    """Inches of the lanes: rows can be seen, and names of lanes have room."""
    height = sum(max(lane.rows * _ROW, _LANE) for lane in found)
    return min(max(height, _HEIGHTS[0]), _HEIGHTS[1])
