"""The Ray actor of a reward pod: takes a sample's text from the store and asks the graders beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from longboat_crds.rewards import RewardSpec
from longboat_runtime.interfaces import SampleStore
from longboat_runtime.problems import SpecProblem
from longboat_runtime.reward.client import GraderClient, GradersGone
from longboat_runtime.reward.result import FunctionOutcome, RewardSample
from longboat_runtime.samples import Row, SampleId


@dataclass(frozen=True, slots=True)
class GradeRequest:
    """Functions (name and timeout in seconds) to be run on one stored sample. `prompt_column` may hold a chat."""

    sample: SampleId
    row: Row
    prompt_column: str
    functions: tuple[tuple[str, float], ...]


class RewardWorker:
    """One in each reward pod. Its calls run concurrently; the graders limit how many grades do."""

    def __init__(self, store: SampleStore, socket: Path) -> None:
        self._store = store
        self._graders = GraderClient(socket)

    async def load(self, rewards: Sequence[RewardSpec]) -> SpecProblem | str | None:
        """Loads all functions. Returns a SpecProblem if one can't be loaded, a message if the graders can't be reached."""
        try:
            problems = await asyncio.gather(
                *(self._graders.load(reward, f"spec.rewards[{index}]") for index, reward in enumerate(rewards))
            )
        except GradersGone as error:
            return str(error)
        return next((problem for problem in problems if problem is not None), None)

    async def grade(self, request: GradeRequest) -> dict[str, FunctionOutcome]:
        """Outcomes by function name. Raises KeyError if the store has lost the sample."""
        (generated,) = await self._store.get([request.sample])
        row = request.row
        original = row.columns.get(request.prompt_column)
        sample = RewardSample(
            text=generated.text,
            prompt=row.text,
            ground_truth=row.ground_truth,
            domain=row.domain,
            columns=row.columns,
            messages=original if isinstance(original, list) else None,
            finish_reason=str(generated.finish_reason),
            tokens=len(generated.token_ids),
        )
        outcomes = await asyncio.gather(
            *(self._graders.grade(name, sample, timeout) for name, timeout in request.functions)
        )
        return {name: outcome for (name, _), outcome in zip(request.functions, outcomes, strict=True)}
