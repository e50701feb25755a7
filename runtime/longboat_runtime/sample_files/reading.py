"""Reads the files: which count, and the samples that somebody wants to see."""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from longboat_runtime.checkpoint.layout import INCARNATIONS
from longboat_runtime.sample_files.contents import Fate
from longboat_runtime.sample_files.files import SCHEMA, TEXTS, Written, written

# A row of a file, by column, as JSON values: `parts` is an object, `versions` a list of objects.
Sample = dict[str, Any]

# Columns that files of earlier versions lack: lists, and others.
_LATER_LISTS = {"special", "segments", "turns"}
_LATER = {"environment_seconds", "environment_error"}
_SHORT = [name for name in SCHEMA.names if name not in TEXTS]


class FileDamaged(Exception):
    """A file can't be read; the message names it."""


class FileRemoved(FileDamaged):
    """The job has removed a file since the files were listed: there are newer ones."""


class Order(StrEnum):
    """Names what samples are ranked by; without a rank they come by step and id."""

    WORST = "worst"
    BEST = "best"
    LONGEST = "longest"


@dataclass(frozen=True, slots=True)
class Query:
    """Selects the samples that somebody wants to see.

    `epoch` and `row` name a prompt; a row alone names it in all epochs. `search` is looked for in prompts, responses, turns and errors,
    whatever its case. `limit` is how many samples at most, None for all of them. Samples without a score are neither best nor worst.
    """

    fate: Fate | None = None
    domain: str | None = None
    epoch: int | None = None
    row: int | None = None
    search: str | None = None
    order: Order | None = None
    limit: int | None = None

    def matches(self, sample: Sample) -> bool:
        """Whether the sample is wanted, as far as its texts don't matter."""
        return (
            self.fate in (None, sample["fate"])
            and self.domain in (None, sample["domain"])
            and self.epoch in (None, sample["epoch"])
            and self.row in (None, sample["row"])
            and (self.order in (None, Order.LONGEST) or sample["score"] is not None)
        )

    def found_in(self, texts: Mapping[str, Any]) -> bool:
        """Whether the text that is looked for is in a sample's prompt, its response, a message of its turns or an error."""
        if self.search is None:
            return True
        wanted = self.search.casefold()
        turns = (text for turn in texts["turns"] for text in (turn["text"], turn["tool_calls"] or ""))
        errors = (text or "" for text in (texts["message"], texts["environment_error"]))
        return any(wanted in text.casefold() for text in (texts["prompt"], texts["response"], *turns, *errors))

    def rank(self, sample: Sample) -> float:
        """Returns the key to order samples by; lower comes first. Without an order it is the same for all."""
        match self.order:
            case Order.WORST:
                return float(sample["score"])
            case Order.BEST:
                return -float(sample["score"])
            case Order.LONGEST:
                return -float(sample["response_tokens"])
        return 0.0


@dataclass(frozen=True, slots=True)
class Selection:
    """The samples that a query asks for, in its order, and how many match it, by fate, whatever its limit."""

    samples: list[Sample]
    matched: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Place:
    """Locates a sample's texts."""

    path: Path
    group: int
    index: int


def surviving(files: Iterable[Written], began: Mapping[int, int]) -> list[Written]:
    """Lists the files that count, by step: `began` has the step at which each incarnation began, as far as it is known.

    What an earlier incarnation wrote beyond the step at which a later one began doesn't count (see `metrics.record.read_records`). Of two
    files of one step, the later incarnation's counts. Pure.
    """
    steps: dict[int, Written] = {}
    files = sorted(files)
    for incarnation in sorted({*began, *(file.incarnation for file in files)}):
        first = began.get(incarnation)
        if first is not None:
            steps = {step: file for step, file in steps.items() if step <= first}
        steps |= {file.step: file for file in files if file.incarnation == incarnation}
    return [steps[step] for step in sorted(steps)]


def read_files(root: Path) -> dict[int, Path]:
    """Lists the files that count below a job's directory, by step in ascending order."""
    return {file.step: file.path(root) for file in surviving(written(root), _began(root))}


def read_file(path: Path, columns: Iterable[str] = SCHEMA.names) -> Iterator[Sample]:
    """Yields the samples of one file, or some columns of them; a part of the file is in memory at a time. Raises FileDamaged."""
    for _, samples in _groups(path, list(columns)):
        yield from samples


def select(paths: Iterable[Path], query: Query) -> Selection:
    """Returns the samples of these files that `query` asks for. Raises FileDamaged, or FileRemoved if a file is gone."""
    rows: list[tuple[float, int, _Place, Sample]] = []
    columns = _SHORT if query.search is None else [*_SHORT, *TEXTS]
    for path in paths:
        for group, samples in _groups(path, columns):
            for index, sample in enumerate(samples):
                if query.matches(sample) and query.found_in(sample):
                    short = {name: sample[name] for name in _SHORT}
                    rows.append((query.rank(sample), len(rows), _Place(path, group, index), short))
    matched = Counter(short["fate"] for *_, short in rows)
    if query.limit is not None:
        rows = heapq.nsmallest(query.limit, rows, key=lambda row: row[:2])
    elif query.order:
        rows.sort(key=lambda row: row[:2])
    texts = _texts([place for _, _, place, _ in rows])
    return Selection([{**sample, **texts[place]} for _, _, place, sample in rows], matched)


def _texts(places: Iterable[_Place]) -> dict[_Place, Sample]:
    wanted: dict[tuple[Path, int], list[_Place]] = {}
    for place in places:
        wanted.setdefault((place.path, place.group), []).append(place)
    texts: dict[_Place, Sample] = {}
    for (path, group), of_group in wanted.items():
        with _opened(path) as file:
            table = file.read_row_group(group, columns=list(TEXTS))
        for place in of_group:
            (texts[place],) = table.slice(place.index, 1).to_pylist()
            texts[place].setdefault("turns", [])
    return texts


def _groups(path: Path, columns: list[str]) -> Iterator[tuple[int, list[Sample]]]:
    """Yields the row groups of a file: the number of each, and its samples."""
    with _opened(path) as file:
        for group in range(file.num_row_groups):
            samples = file.read_row_group(group, columns=columns).to_pylist()
            for sample in samples:
                if "parts" in sample:
                    sample["parts"] = dict(sample["parts"])
                for name in _LATER_LISTS & {*columns}:
                    sample[name] = sample.get(name) or []
                for name in _LATER & {*columns}:
                    sample.setdefault(name, None)
            yield group, samples


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Opens the file for the block. Raises FileDamaged, or FileRemoved if it is gone, also if the block fails to read it."""
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except FileNotFoundError as error:
        raise FileRemoved(f"{path} has just been removed by the job (samples.keep); try again") from error
    except (OSError, pa.ArrowException) as error:
        raise FileDamaged(f"{path} can't be read: {error}") from error


def _began(root: Path) -> dict[int, int]:
    """Reads the step at which each incarnation began: that of its first metrics record.

    An incarnation without a record is left out.
    """
    steps = {}
    for path in (root / INCARNATIONS).glob("*/metrics.jsonl"):
        with path.open(encoding="utf-8") as file:
            line = file.readline()
        if path.parent.name.isdecimal() and line.endswith("\n"):
            steps[int(path.parent.name)] = int(json.loads(line)["training/global_step"])
    return steps
