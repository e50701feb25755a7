"""The store as the rest of the runtime sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ray.exceptions import ActorDiedError

from longboat_runtime.samples import EpisodeOutcome, GeneratedSample, Response, SampleId

if TYPE_CHECKING:
    from ray.actor import ActorHandle


class StoreUnreachable(Exception):
    """The store's actor is gone, and with it what it held."""


class StoreClient:
    """`SampleStore` over the actor's handle; it may be handed to other actors. All calls raise StoreUnreachable."""

    def __init__(self, actor: ActorHandle) -> None:
        self.actor = actor

    async def put(self, samples: Sequence[GeneratedSample]) -> None:
        await self._call("put", list(samples))

    async def refuse(self, engine: str) -> None:
        """Refuses all that this engine puts from now on: it is gone."""
        await self._call("refuse", engine)

    async def get(self, ids: Sequence[SampleId]) -> list[GeneratedSample]:
        samples: list[GeneratedSample]
        samples, missing = await self._call("get", list(ids))
        if missing:
            raise KeyError(*missing)
        return samples

    async def responses(self, ids: Sequence[SampleId], *, token_ids: bool = False) -> Mapping[SampleId, Response]:
        responses: Mapping[SampleId, Response] = await self._call("responses", list(ids), token_ids)
        return responses

    async def outcomes(self, ids: Sequence[SampleId]) -> Mapping[SampleId, EpisodeOutcome | None]:
        outcomes: Mapping[SampleId, EpisodeOutcome | None] = await self._call("outcomes", list(ids))
        return outcomes

    async def delete(self, ids: Sequence[SampleId]) -> None:
        await self._call("delete", list(ids))

    async def held_ids(self) -> list[SampleId]:
        ids: list[SampleId] = await self._call("held_ids")
        return ids

    async def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return await getattr(self.actor, method).remote(*arguments)
        except ActorDiedError as error:
            raise StoreUnreachable(f"the sample store is gone: {error}") from error
