"""The ranks' process group."""

from __future__ import annotations

import pytest

from longboat_runtime.trainer import process_group


def test_an_error_that_cannot_be_pickled_is_raised_by_its_text() -> None:
    class LocalError(Exception):
        """An error of a class that no other process can import."""

    process_group.join(process_group.serve("127.0.0.1"), 0, 1)
    try:
        with pytest.raises(RuntimeError, match="LocalError: no lock"), process_group.together():
            raise LocalError("no lock")
    finally:
        process_group.leave()
