"""Samples for tests of their files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longboat_runtime.metrics.record import JsonLines, Record
from longboat_runtime.sample_files.contents import Fate, SampleFacts, SampleFileRequest
from longboat_runtime.sample_files.files import Written, write
from longboat_runtime.samples import FinishReason, GradeKind, Response, SampleId, VersionSpan

FIRST = SampleId(0, 3, 0, 0)


def facts(id_: SampleId = FIRST, **fields: Any) -> SampleFacts:
    values: dict[str, Any] = {
        "domain": "math",
        "fate": Fate.KEPT,
        "reason": None,
        "prompt_tokens": 2,
        "tokens": 3,
        "finish_reason": FinishReason.STOP,
        "spans": (VersionSpan(4, 0, 3),),
        "engine": "engine-0",
        "grade": GradeKind.SCORED,
        "score": 0.5,
        "parts": {"main": 0.5},
        "grading_seconds": 0.1,
        "advantage": -0.25,
    }
    return SampleFacts(id_, **{**values, **fields})


def prompts(samples: Sequence[SampleId]) -> list[str]:
    return [f"prompt {sample.row}" for sample in samples]


class Store:
    """Holds the samples of a file, or lacks some. Every fetch is noted."""

    def __init__(self, texts: dict[SampleId, str]) -> None:
        self.texts = texts
        self.fetches: list[list[SampleId]] = []

    def responses(self, ids: Sequence[SampleId]) -> dict[SampleId, Response]:
        self.fetches.append(list(ids))
        return {id_: Response(self.texts[id_], FinishReason.STOP, 3) for id_ in ids if id_ in self.texts}


def write_step(
    root: Path, incarnation: int, step: int, *samples: tuple[SampleFacts, str], keep: int = 10, began: int = 0
) -> Path:
    """The file of a step, of these samples and their responses."""
    samples = samples or ((facts(), f"response of step {step}"),)
    request = SampleFileRequest(incarnation, step, step, tuple(one for one, _ in samples), keep, began)
    write(root, request, Store({one.id: text for one, text in samples}).responses, prompts)
    return Written(incarnation, step).path(root)


def began(root: Path, incarnation: int, step: int) -> None:
    """An incarnation that began at this step."""
    sink = JsonLines(root / "incarnations" / str(incarnation) / "metrics.jsonl")
    sink.write(Record(step, 0.0))
    sink.close()
