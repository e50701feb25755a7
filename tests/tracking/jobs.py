"""Jobs that trackers follow: directories with records and samples, as drivers write them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from longboat_crds.job import RLJobSpec
from longboat_runtime.metrics.record import JsonLines, Record
from longboat_runtime.tracking.tracker import TrackedJob
from tests.driver.fakes import make_spec

# A file of an offline run: LevelDB's log format (leveldb/doc/log_format.md) after a header of its own.
_FILE_HEADER, _BLOCK, _HEADER = 7, 32_768, struct.Struct("<IHB")
_FULL, _FIRST, _LAST = 1, 2, 4

OFFLINE = {"weightsAndBiases": {"project": "sums", "mode": "Offline", "tags": ["tiny"]}}


SPEC = make_spec().to_json()


def tracked_spec(tracking: dict[str, Any], **rounds: Any) -> RLJobSpec:
    return RLJobSpec.model_validate(make_spec(**rounds).to_json() | {"tracking": tracking})


def tracked_job(root: Path, spec: RLJobSpec, incarnation: int = 1, secrets: Path | None = None) -> TrackedJob:
    scratch = root / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    return TrackedJob("run0", "sums", str(root), incarnation, spec.to_json(), secrets and str(secrets), str(scratch))


def write_records(root: Path, incarnation: int, *steps: int, metrics: dict[str, float] | None = None) -> None:
    """A record of each step: its score is the incarnation's number and the step."""
    sink = JsonLines(root / "incarnations" / str(incarnation) / "metrics.jsonl")
    for step in steps:
        score = incarnation * 100.0 + step
        sink.write(Record(step, 1_700_000_000.0 + score, {"critic/score/mean": score, **(metrics or {})}))
    sink.close()


def recorded(root: Path) -> Iterator[Any]:
    """The messages in the files of all directories of an offline run, in order."""
    from wandb.proto.wandb_internal_pb2 import Record as Message

    for file in sorted(root.glob("tracking/wandb/offline-run-*/*.wandb")):
        yield from map(Message.FromString, messages(file.read_bytes()))


def rows(root: Path) -> list[dict[str, Any]]:
    """The rows of the history of an offline run."""
    histories = [message.history for message in recorded(root) if message.WhichOneof("record_type") == "history"]
    return [{"/".join(item.nested_key): json.loads(item.value_json) for item in one.item} for one in histories]


def messages(content: bytes) -> Iterator[bytes]:
    """The messages in the file of a run; one that continues in the next block is put together, and a torn end left out."""
    at, body = _FILE_HEADER, b""
    while at + _HEADER.size <= len(content):
        if (left := _BLOCK - at % _BLOCK) < _HEADER.size:
            at += left
            continue
        _, length, kind = _HEADER.unpack_from(content, at)
        part = content[at + _HEADER.size : at + _HEADER.size + length]
        if len(part) < length or not length:
            return
        at += _HEADER.size + length
        body = part if kind in (_FULL, _FIRST) else body + part
        if kind in (_FULL, _LAST):
            yield body
