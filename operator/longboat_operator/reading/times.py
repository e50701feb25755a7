"""Times as the API server keeps them: RFC 3339 text in UTC. Pure."""

from __future__ import annotations

from datetime import UTC, datetime


def stamp(time: datetime) -> str:
    """Writes an aware time as text, in whole seconds."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def fine_stamp(time: datetime) -> str:
    """Writes an aware time as text, with milliseconds: for what takes less than a second."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment(text: str) -> datetime:
    """Reads a text as an aware time."""
    return datetime.fromisoformat(text)


def seconds_until(text: str, seconds: float, now: datetime) -> float:
    """Returns the seconds from `now` to `seconds` after `text`; negative if past."""
    return seconds - (now - moment(text)).total_seconds()
