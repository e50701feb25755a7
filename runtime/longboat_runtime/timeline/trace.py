"""A timeline in the trace event format, for Perfetto (ui.perfetto.dev) and chrome://tracing. Pure.

Format: docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longboat_runtime.timeline.bars import Bar, Pool, Round, Span, Timeline, Work
from longboat_runtime.timeline.layout import lanes, stack

_DRIVER = 1
UNFINISHED = "not finished (engine not recorded)"


def trace(timeline: Timeline) -> dict[str, Any]:
    """Returns JSON values: a process for each lane with a thread for each of its rows, one of the driver, and reward pools' counters.

    Times are whole microseconds since the first round was opened; `otherData.start` is that moment in Unix seconds.
    Events of samples are named by fate: viewers colour events by name.
    """
    begin = timeline.start
    entries = _driver(timeline, begin)
    for pid, lane in enumerate(lanes(timeline.rounds), _DRIVER + 1):
        entries.append(_named("process_name", pid, 0, lane.engine or UNFINISHED))
        entries += [_named("thread_name", pid, row + 1, f"slot {row + 1}") for row in range(lane.rows)]
        entries += [_sample(bar, pid, row + 1, begin) for row, bar in lane.bars]
    for pool in timeline.pools:
        entries += _counters(pool, begin)
    return {"traceEvents": entries, "displayTimeUnit": "ms", "otherData": {"start": begin}}


def _driver(timeline: Timeline, begin: float) -> list[dict[str, Any]]:
    """Makes the driver's rows: rounds that are open at once get rows of their own; below them is one for each kind of work."""
    spans = [(round_.opened, timeline.end if round_.closed is None else round_.closed) for round_ in timeline.rounds]
    rows = stack(spans)
    threads = {row + 1: "rounds" for row in rows}
    works = {work: len(threads) + 1 + place for place, work in enumerate(Work)}
    threads.update({tid: work.value for work, tid in works.items()})
    entries = [_named("process_name", _DRIVER, 0, "driver")]
    entries += [_named("thread_name", _DRIVER, tid, name) for tid, name in threads.items()]
    for row, (start, end), round_ in zip(rows, spans, timeline.rounds, strict=True):
        title = f"round {round_.number} ({round_.kind})"
        entries.append(
            _complete(title, "round", _DRIVER, row + 1, start - begin, end - begin, _round_arguments(round_))
        )
    for span in timeline.spans:
        entries.append(_span(span, works[span.work], begin))
    return entries


def _sample(bar: Bar, pid: int, tid: int, begin: float) -> dict[str, Any]:
    args = {"sample": str(bar.sample), "tokens": bar.tokens, "fate": bar.fate.value}
    if bar.domain:
        args["domain"] = bar.domain
    return _complete(bar.fate.value, "sample", pid, tid, bar.start - begin, bar.end - begin, args)


def _span(span: Span, tid: int, begin: float) -> dict[str, Any]:
    args = {"step": span.step, "done": span.done}
    name = f"{span.work} {span.step}"
    return _complete(name, span.work.value, _DRIVER, tid, span.start - begin, span.end - begin, args)


def _counters(pool: Pool, begin: float) -> list[dict[str, Any]]:
    """Makes the pool's counters, in the driver's process: pools have no process of their own there."""
    courses = (("grades to do", pool.asked), ("CPUs", pool.cpus))
    return [
        {
            "name": f"{pool.name}: {what}",
            "ph": "C",
            "ts": round((time - begin) * 1e6),
            "pid": _DRIVER,
            "tid": 0,
            "args": {what: value},
        }
        for what, course in courses
        for time, value in course
    ]


def _round_arguments(round_: Round) -> dict[str, Any]:
    return {
        "kind": round_.kind.value,
        "version": round_.version,
        "closed": round_.closed is not None,
        "step": round_.step,
        "kept": round_.kept,
        "deferred": round_.deferred,
        "carried": round_.carried,
        "dropped": round_.dropped,
        "tokens": round_.tokens,
    }


def _complete(
    name: str, category: str, pid: int, tid: int, start: float, end: float, args: Mapping[str, Any]
) -> dict[str, Any]:
    # Both ends are rounded, not the duration: what doesn't overlap in seconds doesn't in microseconds.
    first, last = round(start * 1e6), round(end * 1e6)
    head = {"name": name, "cat": category, "ph": "X", "ts": first, "dur": last - first}
    return {**head, "pid": pid, "tid": tid, "args": dict(args)}


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
