"""A driver in its pod, with a fake of its channel to the API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from longboat_runtime.driver import pod
from longboat_runtime.driver.broker import Superseded
from longboat_runtime.driver.main import Ending


class NumbersAlone:
    """Notes the least number that a start asks for, and ends the start there."""

    def __init__(self) -> None:
        self.least: list[int] = []

    async def start(self) -> dict[str, Any]:
        return {}

    async def incarnation(self, least: int) -> int:
        self.least.append(least)
        raise Superseded("the test is over")

    async def close(self) -> None: ...


@pytest.mark.parametrize(("names", "least"), [([], 1), (["1", "2", "10", "lost+found"], 11)])
async def test_a_start_asks_for_a_number_beyond_all_on_the_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], least: int
) -> None:
    """Numbers that the API server granted are forgotten when it is restored from a backup; their files are not."""
    for name in names:
        (tmp_path / "incarnations" / name).mkdir(parents=True)
    broker = NumbersAlone()
    monkeypatch.setattr(pod, "CHECKPOINT", tmp_path)
    monkeypatch.setattr(pod, "load_incluster_config", lambda configuration: None)
    monkeypatch.setattr(pod, "KubernetesBroker", lambda *arguments: broker)
    assert await pod.drive_in_pod("job", "team", "127.0.0.1:6379") is Ending.SUPERSEDED
    assert broker.least == [least]
