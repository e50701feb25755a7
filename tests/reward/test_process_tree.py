"""What is counted of the processes that a launcher has started, and waits for."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from longboat_graders.process_tree import end_group


def test_cpu_seconds_are_those_of_all_processes_that_were_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader's CPU seconds include those of processes that it had waited for."""
    used = [(200, 0, 0.25, 0.5), (100, 3 << 8, 1.0, 0.0), (300, 0, 0.0, 2.0)]
    ended = iter([(pid, status, SimpleNamespace(ru_utime=user, ru_stime=system)) for pid, status, user, system in used])

    def wait(pid: int, options: int) -> tuple[int, int, SimpleNamespace]:
        try:
            return next(ended)
        except StopIteration:
            raise ChildProcessError from None

    monkeypatch.setattr(os, "wait4", wait)
    monkeypatch.setattr(os, "killpg", lambda leader, number: None)
    assert end_group(100) == (3.75, 3 << 8)
