"""The protocol of the sample store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from longboat_runtime.samples import EpisodeOutcome, GeneratedSample, Response, SampleId


class SampleStore(Protocol):
    """Holds generated samples until they are trained or given up. Runs in a pod that outlives engines."""

    async def put(self, samples: Sequence[GeneratedSample]) -> None:
        """Stores samples, but not one that it holds already, unless that is unfinished."""

    async def refuse(self, engine: str) -> None:
        """Refuses all that this engine puts from now on: the engine is gone."""

    async def get(self, ids: Sequence[SampleId]) -> list[GeneratedSample]:
        """Returns samples without their episodes, which go with `responses`. Raises KeyError naming the ids that are missing."""

    async def responses(self, ids: Sequence[SampleId], *, token_ids: bool = False) -> Mapping[SampleId, Response]:
        """Returns what graders need of those samples that it holds, with or without the ids of their tokens."""

    async def outcomes(self, ids: Sequence[SampleId]) -> Mapping[SampleId, EpisodeOutcome | None]:
        """Returns what became of the episodes of those samples that it holds, None of samples without."""

    async def delete(self, ids: Sequence[SampleId]) -> None: ...

    async def held_ids(self) -> list[SampleId]: ...
