"""The protocol of the sample store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from longboat_runtime.samples import GeneratedSample, Response, SampleId


class SampleStore(Protocol):
    """Holds generated samples until they are trained or given up. Lives in a pod that outlives engines."""

    async def put(self, samples: Sequence[GeneratedSample]) -> None:
        """A sample that is held already is passed over, unless what is held is unfinished."""

    async def refuse(self, engine: str) -> None:
        """Nothing that this engine puts is taken any more: it is gone."""

    async def get(self, ids: Sequence[SampleId]) -> list[GeneratedSample]:
        """Raises KeyError naming the ids that are missing."""

    async def responses(self, ids: Sequence[SampleId]) -> Mapping[SampleId, Response]:
        """What graders need of those that are held."""

    async def delete(self, ids: Sequence[SampleId]) -> None: ...

    async def held(self) -> list[SampleId]: ...
