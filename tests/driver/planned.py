"""The driver's planner of shapes without its rounds: a test tells it what was measured."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longboat_crds.rollout import ParallelismMode, ParallelismSpec
from longboat_runtime.driver import reshapes as module
from longboat_runtime.driver.components import Components
from longboat_runtime.driver.reshapes import Reshapes
from longboat_runtime.rollout.parallelism import Bounds
from longboat_runtime.rollout.protocol import ReshapePhase, ReshapeReport
from longboat_runtime.rollout.throughput import Profile
from longboat_runtime.rounds import events
from tests.driver.fakes import Site, make_spec
from tests.rollout.roofline import roofline

BOUNDS = Bounds((1, 2, 4), 1)
TRUE = {1: roofline(1, weight_tokens=20_000), 2: roofline(2), 4: roofline(4)}
CHANGE = {1: 20.0, 2: 25.0, 4: 30.0}
# As the engines are; and one that has two devices twice as fast as they are, so that it has to be corrected.
PROFILE = Profile(TRUE, CHANGE)
WRONG = Profile(
    {**TRUE, 2: replace(TRUE[2], seconds=tuple(tuple(s / 2 for s in row) for row in TRUE[2].seconds))}, CHANGE
)


class Planner:
    """Of a job whose pod has four devices, with this profile; its engines take CHANGE to change."""

    def __init__(
        self,
        root: Path,
        monkeypatch: pytest.MonkeyPatch,
        profile: Profile | None,
        **rounds: Any,
    ) -> None:
        monkeypatch.setattr(module, "bounds_of", lambda job: BOUNDS)
        monkeypatch.setattr(module, "profile_of", lambda job, rollout, bounds: profile)
        site = Site(root, make_spec(**{"sampling": {"max_tokens": 8000}, **rounds}))
        parallelism = ParallelismSpec(mode=ParallelismMode.ADAPTIVE, profile="/there" if profile else None)
        more = {"parallelism": parallelism, "max_sequences": 64, "engines_per_pod": 4}
        site.spec = site.spec.model_copy(update={"rollout": site.spec.rollout.model_copy(update=more)})
        self.driver, self.site = site.driver(), site
        site.fleet.reshape = self._reshape  # type: ignore[method-assign]
        site.trainer.holds_publication = self._holds_publication  # type: ignore[method-assign]
        self._happened = list[events.Body]()
        self.reshapes = Reshapes(self.job, self.components, site.reporter, self._happened.append, self._spawn)

    @property
    def job(self) -> Any:
        return self.driver._job

    @property
    def components(self) -> Components:
        return self.driver._components

    async def resume(self, snapshot: Mapping[str, Any] | None = None) -> None:
        await self.reshapes.resume(snapshot)

    async def settled(self) -> int:
        """Waits for engines to have their shape; how often they have changed since the last time."""
        await self.reshapes.settled()
        happened, self._happened[:] = [*self._happened], []
        for body in happened:
            assert isinstance(body, events.Reshaped)
            self.reshapes.happened(body)
        return len(happened)

    async def _reshape(self, size: int, *, one_by_one: bool) -> ReshapeReport:
        assert not one_by_one
        return ReshapeReport(size, {ReshapePhase.START: CHANGE[size]})

    @staticmethod
    async def _holds_publication() -> bool:
        return True

    @staticmethod
    def _spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.ensure_future(work)
