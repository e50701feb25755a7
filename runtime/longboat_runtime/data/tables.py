"""Rows of JSON Lines and Parquet files, by number. Values stay on disk or in Arrow memory until a row is requested."""

from __future__ import annotations

import bisect
import json
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from longboat_crds.dataset import FileFormat, FilesSource
from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.data.columns import plain


class Table(Protocol):
    """Numbered rows."""

    def __len__(self) -> int: ...

    def record(self, row: int) -> dict[str, Any]:
        """Returns the row's column values, by name, in JSON's types."""

    def place(self, row: int) -> str:
        """Says where a person can find the row, such as `train.jsonl line 7`."""


class JsonLines:
    """One JSON object per line; blank lines don't count. Every line is parsed once when the file is opened."""

    def __init__(self, path: Path, field: str) -> None:
        self.path = path
        self._lines: list[tuple[int, int, int]] = []
        data = path.read_bytes() if path.stat().st_size == 0 else self._map(path)
        start, number = 0, 0
        while start < len(data):
            number += 1
            end = data.find(b"\n", start)
            end = len(data) if end < 0 else end
            if data[start:end].strip():
                _check_line(data[start:end], path, number, field)
                self._lines.append((start, end, number))
            start = end + 1
        self._data = data

    @staticmethod
    def _map(path: Path) -> mmap.mmap:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._lines)

    def record(self, row: int) -> dict[str, Any]:
        """Returns the row's column values."""
        start, end, _ = self._lines[row]
        record: dict[str, Any] = json.loads(self._data[start:end])
        return record

    def place(self, row: int) -> str:
        """Says where a person can find the row."""
        return f"{self.path} line {self._lines[row][2]}"


def _check_line(line: bytes, path: Path, number: int, field: str) -> None:
    try:
        value = json.loads(line)
    except RecursionError as error:
        raise _invalid(field, f"{path} line {number} is nested too deeply. Remove the line.") from error
    except ValueError as error:
        raise _invalid(
            field, f"{path} line {number} is not JSON ({error}). {_other_format(path, number, line)}"
        ) from error
    if not isinstance(value, dict):
        raise _invalid(
            field,
            f"{path} line {number} is a JSON {type(value).__name__}. Write one JSON object (column: value) per line{_ARRAY_CURE}.",
        )


# How a JSON array becomes JSON Lines.
_ARRAY_CURE = " (an array becomes such lines by `jq -c '.[]' FILE`)"


def _other_format(path: Path, number: int, line: bytes) -> str:
    """Says how to fix a file whose first line looks like that of another format."""
    if number == 1 and line.startswith(b"\x1f\x8b"):
        return f"It is compressed: `gunzip {path.name}`, or write Parquet, which is compressed in itself."
    if number == 1 and line.startswith(b"PAR1"):
        return "It is Parquet: set `spec.dataset.files.format: Parquet`."
    if number == 1 and line.lstrip().startswith(b"["):
        return f"Write one JSON object per line{_ARRAY_CURE}."
    return "Write one JSON object (column: value) per line."


def _invalid(field: str, message: str) -> SpecProblem:
    return SpecProblem(Reason.DATASET_INVALID, field, message)


class Parquet:
    """One Parquet file."""

    def __init__(self, path: Path, field: str) -> None:
        self.path = path
        try:
            self._table = pq.read_table(path, memory_map=True)
        except (pa.ArrowException, OSError) as error:
            if getattr(error, "errno", None) is not None:
                raise  # the system can't read the file
            raise _invalid(
                field,
                f"{path} is not a Parquet file, or a damaged one ({error}). Copy it again, or set the file's "
                "format (`spec.dataset.files.format: JSONL`).",
            ) from error

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def record(self, row: int) -> dict[str, Any]:
        """Returns the row's column values."""
        (values,) = self._table.slice(row, 1).to_pylist()
        return {name: plain(value) for name, value in values.items()}

    def place(self, row: int) -> str:
        """Says where a person can find the row."""
        return f"{self.path} row {row}"


class Files:
    """Several files as one table; rows are numbered consecutively across the files."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self._tables = tables
        self._starts = [0]
        for table in tables:
            self._starts.append(self._starts[-1] + len(table))

    def __len__(self) -> int:
        return self._starts[-1]

    def _find(self, row: int) -> tuple[Table, int]:
        index = bisect.bisect_right(self._starts, row) - 1
        return self._tables[index], row - self._starts[index]

    def record(self, row: int) -> dict[str, Any]:
        """Returns the row's column values."""
        table, inner = self._find(row)
        return table.record(inner)

    def place(self, row: int) -> str:
        """Says where a person can find the row."""
        table, inner = self._find(row)
        return table.place(inner)


def open_files(source: FilesSource, field: str) -> Table:
    """Opens and checks all files; `field` is the spec path of `source`, for errors. Raises SpecProblem."""
    readers: dict[FileFormat, type[JsonLines] | type[Parquet]] = {
        FileFormat.JSONL: JsonLines,
        FileFormat.PARQUET: Parquet,
    }
    tables: list[Table] = []
    for index, name in enumerate(source.paths):
        path, at = Path(name), f"{field}.paths[{index}]"
        if not path.is_file():
            raise SpecProblem(
                Reason.DATASET_NOT_FOUND,
                at,
                f"{path} is {'a directory' if path.is_dir() else 'not there'}. Name a file that the "
                "driver pod sees: mount its volume in the runtime's driver template.",
            )
        try:
            tables.append(readers[source.format](path, at))
        except PermissionError as error:
            raise SpecProblem(
                Reason.DATASET_NOT_FOUND,
                at,
                f"{path} can't be read ({error.strerror}). Let the pod's user (or its fsGroup) read it.",
            ) from error
    files = Files(tables) if len(tables) > 1 else tables[0]
    if len(files) == 0:
        raise SpecProblem(
            Reason.DATASET_EMPTY, f"{field}.paths", f"No rows in {', '.join(source.paths)}. Name files that have rows."
        )
    return files
