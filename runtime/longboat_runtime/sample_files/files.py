"""The files themselves: where they are stored, their columns, and how one is written.

`incarnations/3/samples/step-00000010.parquet` below a job's directory has a row for each sample, sorted by its id.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from longboat_runtime.checkpoint.files import fsync_directory
from longboat_runtime.checkpoint.layout import INCARNATIONS
from longboat_runtime.sample_files.contents import SampleFacts, SampleFileRequest
from longboat_runtime.samples import Episode, EpisodeTurn, PromptId, Response, SampleId, SpecialToken

log = structlog.get_logger()

DIRECTORY = "samples"
_NAME = re.compile(r"step-(\d+)\.parquet")
_PARTIAL = ".partial"

_SPECIAL = pa.struct([("at", pa.int32()), ("text", pa.string())])
_SPAN = pa.struct([("version", pa.int64()), ("start", pa.int32()), ("end", pa.int32())])
_SEGMENT = pa.struct([("tokens", pa.int32()), ("trained", pa.int32())])
TURN = pa.struct(
    [
        ("role", pa.string()),
        ("text", pa.string()),
        # A list as JSON; null without.
        ("tool_calls", pa.string()),
        # Of what the model wrote; null of other messages. It is trained in this segment, counted from 0.
        ("tokens", pa.int32()),
        ("trained", pa.bool_()),
        ("segment", pa.int32()),
        ("seconds", pa.float64()),
        # Why its request began the segment, and which of its messages, counted from 0, no earlier turn has; null if it continued one.
        ("beginning", pa.string()),
        ("differs", pa.int32()),
    ]
)
SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("round", pa.int64()),
        ("domain", pa.string()),
        # The prompt's identity, the attempt at it, and the number of the response.
        ("epoch", pa.int64()),
        ("row", pa.int64()),
        ("attempt", pa.int32()),
        ("sample", pa.int32()),
        # kept, dropped or deferred, and why.
        ("fate", pa.string()),
        ("reason", pa.string()),
        # Null (`parts`: empty) without a grade. In `parts` a function that timed out has null.
        ("score", pa.float64()),
        ("parts", pa.map_(pa.string(), pa.float64())),
        ("grade", pa.string()),
        ("grading_seconds", pa.float64()),
        # Null unless it was trained.
        ("advantage", pa.float64()),
        ("prompt_tokens", pa.int32()),
        ("response_tokens", pa.int32()),
        ("finish_reason", pa.string()),
        # Which weights drew response tokens `start` (inclusive) to `end` (exclusive).
        ("versions", pa.list_(_SPAN)),
        ("engine", pa.string()),
        # Special tokens of the response, and before which of its characters they stand.
        ("special", pa.list_(_SPECIAL)),
        # Of an episode: its token sequences, and the seconds in which it didn't wait for the model. Empty and null of other samples.
        ("segments", pa.list_(_SEGMENT)),
        ("environment_seconds", pa.float64()),
        # Why its environment has lost it once, or ended it, or has lost another sample of its group that was dropped for it.
        ("environment_error", pa.string()),
        # The messages of an episode, turn after turn.
        ("turns", pa.list_(TURN)),
        # The grader's message; the prompt as the model got it, special tokens included; the response without special tokens.
        ("message", pa.string()),
        ("prompt", pa.string()),
        ("response", pa.string()),
    ]
)
# Columns whose values may be as long as a response.
TEXTS = ("turns", "message", "prompt", "response")

# Samples are fetched, converted and compressed in portions of about this many bytes, which bounds what a write holds in memory and
# how long it holds the interpreter's lock.
_PORTION_BYTES = 1 << 22
_BYTES_PER_TOKEN = 4
_BYTES_PER_SAMPLE = 1024

Responses = Callable[[Sequence[SampleId]], Mapping[SampleId, Response]]
Prompts = Callable[[Sequence[SampleId]], Sequence[str]]


class Written(NamedTuple):
    """Names the file of one step. Orders by age: a later incarnation is newer, whatever its step."""

    incarnation: int
    step: int

    def path(self, root: Path) -> Path:
        """Returns the path of the file below a job's directory `root`."""
        return root / INCARNATIONS / str(self.incarnation) / DIRECTORY / f"step-{self.step:08d}.parquet"


def written(root: Path) -> list[Written]:
    """Lists the complete files of all incarnations below a job's directory, oldest first."""
    files = []
    for path in (root / INCARNATIONS).glob(f"*/{DIRECTORY}/step-*.parquet"):
        match, incarnation = _NAME.fullmatch(path.name), path.parent.parent.name
        if match and incarnation.isdecimal():
            files.append(Written(int(incarnation), int(match[1])))
    return sorted(files)


def removable(files: Iterable[Written], newest: Written, began: int, keep: int) -> list[Written]:
    """Returns the files to remove after `newest` was written, or wasn't: those that don't count, and all but the `keep` newest others.

    What earlier incarnations wrote beyond `began`, the step at which this one began, doesn't count. Nothing is removed if a later
    incarnation has written: this one is superseded (pure).
    """
    files = list(files)
    if any(file.incarnation > newest.incarnation for file in files):
        return []
    dead = [file for file in files if file.incarnation < newest.incarnation and file.step > began]
    alive = sorted(set(files) - set(dead))
    return [*dead, *alive[: max(0, len(alive) - keep)]]


def prepare() -> None:
    """Has Arrow import what its first conversion needs (pandas, if there is one), which takes part of a second."""
    pa.RecordBatch.from_pylist([{}], SCHEMA)


def write(root: Path, request: SampleFileRequest, responses: Responses, prompts: Prompts) -> None:
    """Writes the file of a step whole or not at all, then removes older ones. `root` is the job's directory.

    `responses` returns those that the store holds; samples that it has lost are left out. `prompts` returns the texts of the prompts of
    samples that it holds, in order. Raises OSError, with nothing half-made left behind; what is beyond `keep` is removed all the same.
    """
    name = Written(request.incarnation, request.step)
    path = name.path(root)
    aside = path.with_name(f".{path.name}{_PARTIAL}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(aside, request, responses, prompts)
        aside.rename(path)
        fsync_directory(path.parent)
    finally:
        aside.unlink(missing_ok=True)
        _remove_old(root, name, request)


def _write(path: Path, request: SampleFileRequest, responses: Responses, prompts: Prompts) -> None:
    short = [name for name in SCHEMA.names if name not in TEXTS]
    dictionary = [*short, "prompt"]
    with pq.ParquetWriter(
        path, SCHEMA, compression="zstd", use_dictionary=dictionary, write_statistics=short
    ) as parquet:
        for portion in _portions(request.samples):
            parquet.write_batch(_batch(portion, request, responses, prompts))
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _batch(
    portion: Sequence[SampleFacts], request: SampleFileRequest, responses: Responses, prompts: Prompts
) -> pa.RecordBatch:
    """Reads the texts of a portion and makes a batch of it, without the samples that the store has lost."""
    stored = responses([facts.id for facts in portion])
    if len(stored) < len(portion):
        log.warning("the store has lost samples that are missing in their file", samples=len(portion) - len(stored))
    samples = [facts for facts in portion if facts.id in stored]
    of_prompt = {facts.id.prompt: facts.id for facts in samples}
    texts: dict[PromptId, str] = dict(zip(of_prompt, prompts([*of_prompt.values()]), strict=True))
    rows = [
        _row(
            request.step,
            request.round,
            facts,
            {"prompt": texts[facts.id.prompt], "response": stored[facts.id].text},
            stored[facts.id].special,
            stored[facts.id].episode,
        )
        for facts in samples
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def _portions(samples: Sequence[SampleFacts]) -> Iterator[list[SampleFacts]]:
    portion: list[SampleFacts] = []
    size = 0
    for facts in samples:
        portion.append(facts)
        computed = sum(segment.computed for segment in facts.segments)  # an episode's messages are about that
        size += _BYTES_PER_SAMPLE + _BYTES_PER_TOKEN * max(computed, facts.prompt_tokens + facts.tokens)
        if size >= _PORTION_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def turns(played: Iterable[EpisodeTurn]) -> list[dict[str, Any]]:
    """Returns the messages of an episode's turns as the column `turns` has them (pure)."""
    rows = []
    for turn in played:
        rows += [_message(message) for message in turn.new]
        own = _message(turn.message)
        rows.append(
            own
            | {
                "text": own["text"] or ("" if own["tool_calls"] else _unicode(turn.text)),
                "tokens": turn.tokens,
                "trained": True,
                "segment": turn.segment,
                "seconds": turn.seconds,
                "beginning": turn.beginning,
                "differs": turn.differs,
            }
        )
    return rows


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    content, calls = message.get("content"), message.get("tool_calls")
    text = content if isinstance(content, str) else "" if content is None else json.dumps(content, ensure_ascii=False)
    reasoning = message.get("reasoning")
    text = f"{reasoning}\n{text}" if isinstance(reasoning, str) and reasoning else text
    return {
        "role": _unicode(str(message.get("role", ""))),
        "text": _unicode(text),
        "tool_calls": _unicode(json.dumps(calls, ensure_ascii=False, default=str)) if calls else None,
        "trained": False,
    }


def _unicode(text: str) -> str:
    return text.encode(errors="replace").decode()


def _row(
    step: int,
    round_: int,
    facts: SampleFacts,
    texts: Mapping[str, str],
    special: Sequence[SpecialToken],
    episode: Episode | None,
) -> dict[str, Any]:
    """Makes one row; text that is not valid Unicode gets question marks."""
    epoch, row, attempt, index = facts.id
    texts = {"message": facts.message or "", **texts}
    whole = {name: _unicode(text) for name, text in texts.items()}
    error = facts.environment_error or (episode.message if episode else "")
    return {
        "step": step,
        "round": round_,
        "domain": facts.domain,
        "epoch": epoch,
        "row": row,
        "attempt": attempt,
        "sample": index,
        "fate": facts.fate.value,
        "reason": facts.reason,
        "score": facts.score,
        "parts": list(facts.parts.items()),
        "grade": facts.grade.value if facts.grade else None,
        "grading_seconds": facts.grading_seconds,
        "advantage": facts.advantage,
        "prompt_tokens": facts.prompt_tokens,
        "response_tokens": facts.tokens,
        "finish_reason": facts.finish_reason.value,
        "versions": [span._asdict() for span in facts.spans],
        "engine": facts.engine,
        "special": [token._asdict() for token in special],
        "segments": [{"tokens": segment.computed, "trained": segment.trained} for segment in facts.segments],
        "environment_seconds": facts.environment_seconds,
        "environment_error": _unicode(error) if error else None,
        "turns": turns(episode.turns) if episode else [],
        **whole,
    }


def _remove_old(root: Path, name: Written, request: SampleFileRequest) -> None:
    try:
        for old in removable(written(root), name, request.began, request.keep):
            old.path(root).unlink(missing_ok=True)
        for partial in (root / INCARNATIONS).glob(f"*/{DIRECTORY}/.*{_PARTIAL}"):
            if int(partial.parent.parent.name) < request.incarnation:
                partial.unlink(missing_ok=True)
    except OSError as error:
        # What is left is removed with the next file.
        log.warning("an old file of samples could not be removed", error=str(error))
