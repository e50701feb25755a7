"""`longboat timeline`: rounds of a job, from its event logs to a picture or a trace."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from longboat_runtime.eventlog import read_log
from longboat_runtime.timeline.bars import choose
from longboat_runtime.timeline.fold import fold
from longboat_runtime.timeline.picture import PICTURE, draw
from longboat_runtime.timeline.trace import trace

_FAILED = 1


def show(output: Path, rounds: str | None, png: Path | None, trace_file: Path | None) -> int:
    """Writes what was asked for, by default OUTPUT/timeline.png; returns the exit status: 0 done, 1 failed."""
    root = output.resolve()
    try:
        timeline = fold(read_log(root))
    except ValueError as error:
        return _failed(f"OUTPUT {output}: {error}")
    if not timeline.rounds:
        return _failed(f"OUTPUT {output}: no round was opened yet; try again later")
    try:
        timeline = choose(timeline, rounds)
    except ValueError as error:
        return _failed(f"--rounds {rounds}: {error}")
    if png is None and trace_file is None:
        png = output / PICTURE
    try:
        if png is not None:
            draw(timeline, png, root.name)
            typer.echo(f"picture      {png}")
        if trace_file is not None:
            trace_file.write_text(json.dumps(trace(timeline), separators=(",", ":")) + "\n")
            typer.echo(f"trace        {trace_file}  (open it at https://ui.perfetto.dev)")
    except OSError as error:
        return _failed(f"{error.filename}: {error.strerror}; name files that can be written by --png and --trace")
    return 0


def _failed(message: str) -> int:
    typer.echo(message, err=True)
    return _FAILED
