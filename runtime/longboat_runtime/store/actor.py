"""The sample store as a Ray actor in the driver pod, beside the head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import ray

from longboat_runtime.samples import GeneratedSample, SampleId
from longboat_runtime.stacks import thread_stacks
from longboat_runtime.store.samples import HeldSamples

if TYPE_CHECKING:
    from ray.actor import ActorHandle

NAME = "sample-store"
NAMESPACE = "longboat"
RESOURCE = "longboat-store"


@dataclass(frozen=True, slots=True)
class StoreReport:
    """How full the store is."""

    samples: int
    nbytes: int
    peak_bytes: int


class SampleStoreActor:
    """Keeps samples in its own memory. Ray runs its methods one after another."""

    def __init__(self) -> None:
        self._held = HeldSamples()

    def put(self, samples: Sequence[GeneratedSample]) -> None:
        """Returning is the acknowledgement. A sample that is held already is passed over, unless that is unfinished."""
        self._held.put(samples)

    def get(self, ids: Sequence[SampleId]) -> tuple[list[GeneratedSample], list[SampleId]]:
        """The samples, or none of them and the ids that are missing (an exception would come back wrapped by Ray)."""
        try:
            return self._held.get(ids), []
        except KeyError as missing:
            return [], list(missing.args)

    def delete(self, ids: Sequence[SampleId]) -> None:
        self._held.delete(ids)

    def held(self) -> list[SampleId]:
        return self._held.ids()

    def report(self) -> StoreReport:
        return StoreReport(len(self._held.ids()), self._held.nbytes, self._held.peak_bytes)

    def stacks(self) -> str:
        return thread_stacks()


def start_store() -> ActorHandle:
    """Starts the store on the node with resource `longboat-store`. It ends with the driver that started it.

    A driver that starts again makes an empty one: what the old incarnation generated and did not train is made again.
    """
    return (
        ray.remote(SampleStoreActor)
        .options(name=NAME, namespace=NAMESPACE, num_cpus=0, resources={RESOURCE: 1}, max_restarts=0)
        .remote()
    )
