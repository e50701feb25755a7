"""A job's events, as its directory has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from longboat_runtime.checkpoint.layout import INCARNATIONS
from longboat_runtime.driver.eventlog import LOG_NAME, LogPosition, end_of, log_path, surviving
from longboat_runtime.rounds.events import Event


def newest(root: Path) -> LogPosition | None:
    """The end of the newest log below a job's directory; None if there is none. A log without a complete first line counts as empty."""
    numbers = [int(path.name) for path in (root / INCARNATIONS).glob("*") if path.name.isdecimal()]
    logs = [number for number in sorted(numbers, reverse=True) if log_path(root, number).is_file()]
    return next((end for end in (end_of(root, number) for number in logs) if end.offset), None)


def read_log(root: Path) -> Iterator[Event]:
    """Events of the surviving incarnations below a job's directory, oldest first.

    That is the newest log, and of those before it the part that it continues. Raises ValueError, with a message for people, if
    there is no log or a part of it can't be read.
    """
    try:
        end = newest(root)
        if end is not None:
            yield from surviving(root, end)
            return
    except OSError as error:
        raise ValueError(f"{error.filename}: {error.strerror}; the rounds can't be shown without it") from error
    except (ValueError, KeyError) as error:
        raise ValueError(f"a log below {root / INCARNATIONS} is damaged: {error}") from error
    raise ValueError(
        f"no events in {root / INCARNATIONS}/*/{LOG_NAME}; give the directory that `longboat run` wrote (--output), or the "
        "job's directory on its checkpoint claim"
    )
