"""Waiting for the cluster's processes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.cluster.errors import ClusterError
from e2e.cluster.waiting import wait_for_process


def answers(*given: bool) -> Callable[[], bool]:
    """Gives these answers, the last one for ever."""
    left = list(given)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def test_a_process_that_is_just_becoming_its_program_has_not_ended(tmp_path: Path) -> None:
    wait_for_process(answers(False, False, True), answers(True, False, True), tmp_path / "log")


def test_a_process_that_has_ended_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "kubelet.log"
    log.write_text("no such flag\n")
    with pytest.raises(ClusterError, match=r"kubelet has ended.*\n.*no such flag"):
        wait_for_process(answers(False), answers(True, False), log)
