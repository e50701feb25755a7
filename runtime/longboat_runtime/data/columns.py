"""Columns of a row: their names, and values that can travel as JSON. Pure."""

from __future__ import annotations

import base64
import datetime
import difflib
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any


def suggestion(name: str, available: Iterable[str]) -> str:
    """` Did you mean X?` for the closest of the names, else nothing."""
    close = difflib.get_close_matches(name, list(available), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def plain(value: Any) -> Any:
    """The value as JSON can carry it: dates as ISO text, decimals as text, bytes as text (base64 unless UTF-8)."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return base64.b64encode(value).decode()
        case datetime.date() | datetime.time():
            return value.isoformat()
        case datetime.timedelta():
            return value.total_seconds()
        case Decimal():
            return str(value)
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in value]
        case _:
            return str(value)
