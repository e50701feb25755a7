"""A timeline as a PNG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from longboat_runtime.timeline.bars import Fate, Timeline, Work
from longboat_runtime.timeline.layout import (
    FULL,
    Axis,
    Lane,
    caption,
    duration,
    lane_name,
    lanes,
    pool_name,
    steps,
    title,
)

PICTURE = "timeline.png"
_DPI = 110
# Inches that a row of samples, a lane, the trainer's part and a reward pool are high.
_ROW, _LANE, _TRAINER, _POOL = 0.016, 0.3, 0.5, 0.32
# Inches around the panels: names of lanes, and captions, axis and legend.
_MARGIN_WIDTH, _MARGIN_HEIGHT = 1.5, 1.8
_WIDTHS, _HEIGHTS = (8.0, 40.0), (2.5, 16.0)
# Rounds that are opened within this many seconds count as opened at once.
_SIMULTANEOUS_SECONDS = 0.05

# Distinguishable with any kind of colour vision (Okabe and Ito).
_FATES = {
    Fate.KEPT: "#009E73",
    Fate.SURPLUS: "#56B4E9",
    Fate.DEFERRED: "#E69F00",
    Fate.CARRIED: "#F0E442",
    Fate.MOVED: "#999933",
    Fate.DROPPED: "#CC79A7",
    Fate.LOST: "#000000",
    Fate.OPEN: "#BBBBBB",
}
_WORKS = {
    Work.STREAM: "#56B4E9",
    Work.TRAIN: "#0072B2",
    Work.PUBLISH: "#D55E00",
    Work.RESHAPE: "#882255",
    Work.DRAIN: "#999933",
}
_UNFINISHED_STYLE: dict[str, Any] = {"hatch": "////", "edgecolor": "white", "linewidth": 0}
_LINE = "#222222"
_GRADES, _CPUS = "#A9BCD0", "#B2182B"
# Share of a pool's height that the largest value takes.
_CURVE_HEIGHT = 0.85
# Shares of the height of all rows: the free space around all lanes, what a lane takes at least so that its name fits, and
# what all lanes may take for that.
_LANE_SPACE, _LEAST_LANE, _LANES_SHARE = 0.08, 0.05, 0.5
# Inches that the name of a lane is high.
_NAME_HEIGHT = 0.15
# Up to _MOST_SEPARATE_ROWS rows are drawn with space between them; with more rows the space would only be a pattern of pixels.
_MOST_SEPARATE_ROWS, _THICKNESS = 120, 0.85


def draw(timeline: Timeline, file: Path, job: str) -> None:
    """Draws rounds (at least one) of the job named `job`. Raises OSError.

    A lane of samples for each engine, below them one for each reward pool, if the log has what they did, and the trainer.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    axis, engine_lanes = Axis.from_timeline(timeline), lanes(timeline.rounds)
    width, height = _width(timeline, axis), _height(engine_lanes)
    heights = [height, *([_POOL * len(timeline.pools)] if timeline.pools else []), _TRAINER]
    size = width + _MARGIN_WIDTH, sum(heights) + _MARGIN_HEIGHT
    figure, panels = pyplot.subplots(
        len(heights), 1, figsize=size, sharex=True, layout="constrained", height_ratios=heights
    )
    handles = _draw_samples(panels[0], engine_lanes, axis, height)
    handles += _draw_pools(panels[1], timeline, axis) if timeline.pools else []
    handles += _draw_works(panels[-1], timeline, axis)
    handles += _draw_rounds(panels, timeline, axis, width) + _draw_gaps(panels, timeline, axis)
    panels[-1].set_xlim(0, max(axis.at(timeline.end), 1e-3))
    opened = datetime.fromtimestamp(timeline.start, UTC)
    first = timeline.rounds[0].number
    panels[-1].set_xlabel(f"seconds since round {first} was opened ({opened:%Y-%m-%d %H:%M:%S} UTC)")
    figure.suptitle(title(job, timeline.rounds), x=0.01, ha="left", fontweight="bold")
    figure.legend(handles=handles, loc="outside lower left", ncols=5, frameon=False, fontsize=9)
    try:
        figure.savefig(file, format="png", dpi=_DPI, bbox_inches="tight", pad_inches=0.15)
    finally:
        pyplot.close(figure)


def _width(timeline: Timeline, axis: Axis) -> float:
    """Chooses the width of the panels in inches: within `_WIDTHS`, the narrowest round has room for its caption.

    A round doesn't count if the next one is opened at once.
    """
    opened = [axis.at(round_.opened) for round_ in timeline.rounds] + [axis.at(timeline.end)]
    widths = [later - earlier for earlier, later in pairwise(opened) if later - earlier > _SIMULTANEOUS_SECONDS]
    width = opened[-1] / min(widths) * FULL if widths else 0.0
    return min(max(width, _WIDTHS[0]), _WIDTHS[1])


def _height(engine_lanes: Sequence[Lane]) -> float:
    """Chooses the height of the lanes in inches: within `_HEIGHTS`, rows can be seen, and names of lanes have room."""
    height = sum(max(lane.rows * _ROW, _LANE) for lane in engine_lanes)
    return min(max(height, _HEIGHTS[0]), _HEIGHTS[1])


def _draw_samples(panel: Any, engine_lanes: Sequence[Lane], axis: Axis, inches: float) -> list[Any]:
    """Draws the bars of all lanes, from top to bottom of a panel `inches` high; y counts rows. Returns handles for the legend.

    If there are very many lanes, only some are named, always including the last.
    """
    rows, count = max(sum(lane.rows for lane in engine_lanes), 1), max(len(engine_lanes), 1)
    space, least = rows * _LANE_SPACE / count, rows * min(_LEAST_LANE, _LANES_SHARE / count)
    thickness = _THICKNESS if rows <= _MOST_SEPARATE_ROWS else 1.0
    shapes: dict[Fate, list[list[tuple[float, float]]]] = {fate: [] for fate in Fate}
    top, middles = 0.0, []
    for lane in engine_lanes:
        height = max(lane.rows, least)
        first = top + (space + height - lane.rows) / 2
        for row, bar in lane.bars:
            begin, end, upper = axis.at(bar.start), axis.at(bar.end), first + row
            lower = upper + thickness
            shapes[bar.fate].append([(begin, upper), (end, upper), (end, lower), (begin, lower)])
        middles.append(top + (space + height) / 2)
        top += space + height
        panel.axhline(top, color=_LINE, linewidth=0.6 if inches / count > _NAME_HEIGHT else 0.1)
    for fate, bars in shapes.items():
        panel.add_collection(PolyCollection(bars, facecolors=_FATES[fate], linewidths=0))
    panel.set_ylim(top or 1.0, 0)
    named = {*range(0, len(engine_lanes), ceil(count * _NAME_HEIGHT / inches)), *range(len(engine_lanes))[-1:]}
    panel.set_yticks([middles[i] for i in named], [lane_name(engine_lanes[i]) for i in named])
    panel.tick_params(length=0)
    counts = Counter(bar.fate for lane in engine_lanes for _, bar in lane.bars)
    return [Patch(color=_FATES[fate], label=f"{fate} ({counts[fate]:,})") for fate in Fate if counts[fate]]


def _draw_pools(panel: Any, timeline: Timeline, axis: Axis) -> list[Any]:
    """Draws a lane for each reward pool: an area for grades without an answer, a line for CPUs; each to the scale of all pools."""
    most_asked = max((count for pool in timeline.pools for _, count in pool.asked), default=0) or 1
    most_cpus = max((cpus for pool in timeline.pools for _, cpus in pool.cpus), default=0.0) or 1.0
    for place, pool in enumerate(timeline.pools):
        bottom = place + 1.0
        times, counts = steps(pool.asked, timeline.end)
        heights = [bottom - _CURVE_HEIGHT * value / most_asked for value in counts]
        panel.fill_between([axis.at(time) for time in times], heights, bottom, color=_GRADES, linewidth=0)
        times, cpus = steps(pool.cpus, timeline.end)
        heights = [bottom - _CURVE_HEIGHT * value / most_cpus for value in cpus]
        panel.plot([axis.at(time) for time in times], heights, color=_CPUS, linewidth=1.2)
        panel.axhline(bottom, color=_LINE, linewidth=0.6)
    panel.set_ylim(len(timeline.pools), 0)
    panel.set_yticks([place + 0.5 for place in range(len(timeline.pools))], [pool_name(p) for p in timeline.pools])
    panel.tick_params(axis="y", length=0)
    handles: list[Any] = [Patch(color=_GRADES, label=f"grades to do (at most {most_asked:,})")]
    if any(pool.cpus for pool in timeline.pools):
        handles.append(Line2D([], [], color=_CPUS, linewidth=1.2, label=f"CPUs of a pool (at most {most_cpus:g})"))
    return handles


def _draw_works(panel: Any, timeline: Timeline, axis: Axis) -> list[Any]:
    """Draws a row for each kind of work, for training and publications even if there is none. Work that wasn't done is hatched."""
    shown = {span.work for span in timeline.spans}
    lines = [work for work in Work if work in shown or work in (Work.TRAIN, Work.PUBLISH)]
    for span in timeline.spans:
        place, start, end = lines.index(span.work), axis.at(span.start), axis.at(span.end)
        style = {} if span.done else _UNFINISHED_STYLE
        panel.barh(place, end - start, 0.7, start, facecolor=_WORKS[span.work], **style)
    panel.set_ylim(len(lines) - 0.5, -0.5)
    panel.set_yticks(range(len(lines)), [work.value for work in lines])
    panel.tick_params(axis="y", length=0)
    handles = [Patch(color=_WORKS[work], label=work.value) for work in Work if work in shown]
    undone = any(not span.done and span.end > span.start for span in timeline.spans)
    return (
        [*handles, Patch(facecolor="#888888", label="failed or unfinished", **_UNFINISHED_STYLE)] if undone else handles
    )


def _draw_rounds(panels: Sequence[Any], timeline: Timeline, axis: Axis, width: float) -> list[Any]:
    """Marks where rounds open and close, through all panels (`width` inches), and draws their captions above the first."""
    opened = [axis.at(round_.opened) for round_ in timeline.rounds]
    ends = [*opened[1:], axis.at(timeline.end)]
    for round_, start, end in zip(timeline.rounds, opened, ends, strict=True):
        # Slightly more, since the width was chosen for the narrowest one.
        text = caption(round_, (end - start) / max(ends[-1], 1e-9) * width * 1.01)
        place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "annotation_clip": False}
        panels[0].annotate(text, (start, 1), (0, 5), fontsize=8, va="bottom", **place)
        for panel in panels:
            panel.axvline(start, color=_LINE, linewidth=0.6, alpha=0.5)
            if round_.closed is not None:
                panel.axvline(axis.at(round_.closed), color=_LINE, linewidth=1.1, linestyle="--")
    handles = [Line2D([], [], color=_LINE, linewidth=1.1, linestyle="--", label="round closed")]
    return handles if any(round_.closed for round_ in timeline.rounds) else []


def _draw_gaps(panels: Sequence[Any], timeline: Timeline, axis: Axis) -> list[Any]:
    """Marks where one incarnation ends and the next one begins; the time between is left out."""
    for gap in timeline.gaps:
        for panel in panels:
            panel.axvline(axis.at(gap.start), color="#AA0000", linewidth=1.5, linestyle=":")
    left_out = sum(gap.end - gap.start for gap in timeline.gaps)
    label = f"driver restarted ({duration(left_out)} left out)"
    return [Line2D([], [], color="#AA0000", linewidth=1.5, linestyle=":", label=label)] if timeline.gaps else []
