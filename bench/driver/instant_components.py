"""Components that answer at once: what is left is the driver."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from longboat_graders.messages import IsolationInForce
from longboat_runtime.checkpoint.manifest import FileEntry
from longboat_runtime.checkpoint.protocol import Manifest
from longboat_runtime.driver.components import Components
from longboat_runtime.reward.cpus import PoolLoad
from longboat_runtime.reward.protocol import Urgency
from longboat_runtime.rollout.load import Load, PodLoad
from longboat_runtime.rollout.protocol import FleetState, PublicationReport
from longboat_runtime.rollout.turn_router import TurnEngines
from longboat_runtime.sample_files.contents import SampleFileRequest
from longboat_runtime.samples import (
    FinishedSample,
    FinishReason,
    GeneratedSample,
    Grade,
    GradeKind,
    PromptId,
    Response,
    Row,
    SampleId,
    SampleRequest,
    TimeLimit,
    VersionSpan,
)
from longboat_runtime.trainer.protocol import ChunkRequest, ModelInfo, TrainReport, TrainRequest
from longboat_runtime.weights.publication import WeightPublication
from tests.support.publications import Packed


class Store:
    """Holds nothing: data never goes through the driver."""

    async def put(self, samples: Sequence[GeneratedSample]) -> None: ...

    async def get(self, ids: Sequence[SampleId]) -> list[GeneratedSample]:
        raise KeyError(ids)

    async def responses(self, ids: Sequence[SampleId], *, token_ids: bool = False) -> dict[SampleId, Response]:
        return {}

    async def refuse(self, engine: str) -> None: ...

    async def delete(self, ids: Sequence[SampleId]) -> None: ...

    async def held_ids(self) -> list[SampleId]:
        return []


class Fleet:
    """Answers everything that was asked for as soon as the driver waits: all of a round is in flight until then."""

    def __init__(self) -> None:
        self.version = 0
        self._running: dict[SampleId, SampleRequest] = {}
        self._done: list[FinishedSample] = []
        self._news = asyncio.Event()

    async def submit(self, requests: Sequence[SampleRequest]) -> None:
        if not self._running:
            asyncio.get_running_loop().call_soon(self._answer)
        self._running.update({request.id: request for request in requests})

    def tokens(self, request: SampleRequest) -> int:
        """Returns how many tokens the response to a request has."""
        return 1 + request.seed % 512

    def _answer(self) -> None:
        self._finish([*self._running], FinishReason.STOP)

    async def abort(self, ids: Sequence[SampleId]) -> None:
        self._finish([sample for sample in ids if sample in self._running], FinishReason.ABORT)

    def _finish(self, samples: Sequence[SampleId], reason: FinishReason) -> None:
        for sample in samples:
            request = self._running.pop(sample)
            tokens = self.tokens(request)
            span = (VersionSpan(self.version, 0, tokens),)
            self._done.append(FinishedSample(sample, len(request.prompt_ids), tokens, reason, span, "engine-0"))
        self._news.set()

    async def finished(self) -> list[FinishedSample]:
        await self._news.wait()
        self._news.clear()
        done, self._done = self._done, []
        return done

    tensor_parallel = 1
    pods: Mapping[str, PodLoad] = {}

    def release(self, pods: Collection[str]) -> None:
        del pods

    async def publish(self, publication: WeightPublication) -> PublicationReport:
        self.version = publication.version
        return PublicationReport(publication.version, 0.0, 0, 0.0, ("engine-0",))

    async def loads(self) -> Mapping[str, Load]:
        return {}

    async def turn_engines(self, previous: TurnEngines) -> TurnEngines:
        await asyncio.Event().wait()
        return previous

    async def changed(self, previous: FleetState) -> FleetState:
        del previous
        await asyncio.Event().wait()
        raise AssertionError

    @property
    def calibrations(self) -> Mapping[str, float]:
        return {}

    def calibrate(self, calibrations: Mapping[str, float]) -> None:
        del calibrations

    async def close(self) -> None: ...


class Rewards:
    """Every other response of a group is right. Grades overlap, as they do anywhere: none comes before the next is asked for."""

    unserved: Sequence[str] = ()
    isolation: Mapping[str, IsolationInForce] = {}
    loads: Mapping[str, PoolLoad] = {}
    sources: Mapping[str, Mapping[str, str]] = {}
    disagreeing: str = ""

    async def grade(
        self,
        sample: SampleId,
        row: Row,
        urgency: Urgency = Urgency(),  # noqa: B008 - immutable
        limits: Mapping[str, TimeLimit] | None = None,
        *,
        siblings: Sequence[SampleId] = (),
        training: Mapping[str, float] = MappingProxyType({}),
    ) -> Grade:
        del limits, siblings, training
        await asyncio.sleep(0)
        return Grade(GradeKind.SCORED, float(sample.index % 2), 0.0)

    def flush(self) -> None: ...

    async def close(self) -> None: ...


class Trainer:
    async def load(self) -> ModelInfo:
        return ModelInfo(1, 1024, 256)

    async def accumulate(self, request: ChunkRequest) -> float:
        return 0.0

    async def train(self, request: TrainRequest) -> TrainReport:
        return TrainReport(request.step, {})

    async def holds_publication(self) -> bool:
        return True

    async def publish(self, version: int) -> WeightPublication:
        return WeightPublication(version, Packed((), ""), (), ())

    async def published(self) -> str:
        return ""

    async def checksum(self) -> str:
        return ""

    async def snapshot(self) -> None: ...

    async def write(self, directory: Path) -> Sequence[FileEntry]:
        return ()

    async def restore(self, directory: Path, entries: Sequence[FileEntry]) -> None: ...

    async def write_samples(self, request: SampleFileRequest, root: Path) -> None: ...

    async def export(self, directory: Path) -> None: ...

    async def close(self) -> None: ...


class Source:
    """Rows that never repeat."""

    skipped = None

    def __init__(self) -> None:
        self._drawn = 0

    def draw(self, count: int, domain: str = "") -> list[PromptId]:
        first, self._drawn = self._drawn, self._drawn + count
        return [PromptId(0, number) for number in range(first, first + count)]

    def row(self, prompt: PromptId) -> Row:
        return Row(prompt, "", (1, 2, 3, 4))

    def forget(self, prompts: Iterable[PromptId]) -> None: ...

    def domain(self, row: int) -> str:
        return ""

    def state(self) -> Mapping[str, Any]:
        return {"drawn": self._drawn}

    def restore(self, state: Mapping[str, Any]) -> None: ...


class Checkpoints:
    """Makes none: what the driver's part of one costs is taken at every commit all the same."""

    def __init__(self, root: Path) -> None:
        self._root = root

    damaged: tuple[str, ...] = ()

    def newest(self) -> Manifest | None:
        return None

    def pass_over(self, checkpoint: Manifest, cause: str) -> None: ...

    async def save(self, step: int, state: Mapping[str, Any], write_model: Any) -> Manifest:
        return Manifest(1, step, self._root, state, ())


def components(root: Path) -> Components:
    """Makes the components for one run of a driver whose checkpoint directory is `root`."""
    return Components(Store(), Fleet(), Rewards(), Trainer(), Source(), Checkpoints(root))
