"""The sample store: what it holds, and the Ray actor in the driver pod, beside the head."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import ray

from longboat_runtime.samples import EpisodeOutcome, FinishReason, GeneratedSample, Response, SampleId
from longboat_runtime.stacks import thread_stacks

if TYPE_CHECKING:
    from ray.actor import ActorHandle

NAME = "sample-store"
NAMESPACE = "longboat"
RESOURCE = "longboat-store"


class HeldSamples:
    """A dictionary of samples. Putting a sample that is held finished, and deleting one that isn't held, change nothing.

    Nor does what an engine puts that is `refused`: a call that it sent before it died may arrive when its samples are made again.
    """

    def __init__(self) -> None:
        self._samples: dict[SampleId, GeneratedSample] = {}
        self.refused: set[str] = set()

    def put(self, samples: Iterable[GeneratedSample]) -> None:
        for sample in samples:
            previous = self._samples.get(sample.id)
            if sample.engine in self.refused:
                continue
            if previous is not None and previous.finish_reason is not FinishReason.ABORT:
                continue
            self._samples[sample.id] = sample

    def get(self, ids: Sequence[SampleId]) -> list[GeneratedSample]:
        """Returns samples without their episodes, which nobody trains. Raises KeyError whose arguments are the missing ids."""
        if missing := [sample for sample in ids if sample not in self._samples]:
            raise KeyError(*missing)
        return [replace(self._samples[sample], episode=None) for sample in ids]

    def responses(self, ids: Sequence[SampleId], *, token_ids: bool) -> dict[SampleId, Response]:
        """Returns the responses by id, with or without the ids of their tokens; samples that aren't held are left out."""
        stored = {sample: self._samples[sample] for sample in ids if sample in self._samples}
        return {
            id_: sample.response._replace(token_ids=sample.token_ids) if token_ids else sample.response
            for id_, sample in stored.items()
        }

    def outcomes(self, ids: Sequence[SampleId]) -> dict[SampleId, EpisodeOutcome | None]:
        """Returns what became of the samples' episodes, None of those without; samples that aren't held are left out."""
        episodes = {sample: self._samples[sample].episode for sample in ids if sample in self._samples}
        return {sample: None if episode is None else episode.outcome for sample, episode in episodes.items()}

    def delete(self, ids: Iterable[SampleId]) -> None:
        for sample in ids:
            self._samples.pop(sample, None)

    def ids(self) -> list[SampleId]:
        return sorted(self._samples)


class SampleStoreActor:
    """Keeps samples in its own memory. Ray runs its methods one after another."""

    def __init__(self) -> None:
        self._held = HeldSamples()

    def put(self, samples: Sequence[GeneratedSample]) -> None:
        """Stores samples; returning is the acknowledgement. Skips those of refused engines, and any that it already holds finished."""
        self._held.put(samples)

    def refuse(self, engine: str) -> None:
        """Refuses all that this engine puts from now on."""
        self._held.refused.add(engine)

    def get(self, ids: Sequence[SampleId]) -> tuple[list[GeneratedSample], list[SampleId]]:
        """Returns the samples, or none of them and the ids that are missing (an exception would come back wrapped by Ray)."""
        try:
            return self._held.get(ids), []
        except KeyError as missing:
            return [], list(missing.args)

    def responses(self, ids: Sequence[SampleId], token_ids: bool) -> dict[SampleId, Response]:
        return self._held.responses(ids, token_ids=token_ids)

    def outcomes(self, ids: Sequence[SampleId]) -> dict[SampleId, EpisodeOutcome | None]:
        return self._held.outcomes(ids)

    def delete(self, ids: Sequence[SampleId]) -> None:
        self._held.delete(ids)

    def held_ids(self) -> list[SampleId]:
        return self._held.ids()

    def stacks(self) -> str:
        return thread_stacks()


def start_store() -> ActorHandle:
    """Starts the store on the node with resource `longboat-store`. It ends with the driver that started it.

    A driver that starts again makes an empty one: what the old incarnation generated but did not train is generated again.
    """
    return (
        ray.remote(SampleStoreActor)
        .options(name=NAME, namespace=NAMESPACE, num_cpus=0, resources={RESOURCE: 1}, max_restarts=0)
        .remote()
    )
