"""What both systems are given: workload (model, prompts, reward, lengths), batch, and the numbers of the algorithm."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GROUP_SIZE = 8
LEARNING_RATE = 1e-6
CLIP = 0.2


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table. A step trains `samples` samples, GROUP_SIZE of each prompt."""

    workload: str
    size: str
    samples: int

    @property
    def prompts(self) -> int:
        return self.samples // GROUP_SIZE

    @property
    def name(self) -> str:
        return f"{self.workload}-{self.size}-{self.samples}"

    @property
    def module(self) -> Any:
        """`bench.step.even` or `bench.step.tail`: SIZES, PROMPT_TOKENS, MAX_TOKENS, build_model, rows, reward."""
        return importlib.import_module(f"bench.step.{self.workload}")


CASES = [
    Case("even", "0.6M", 32),
    Case("even", "4M", 128),
    Case("tail", "0.3M", 32),
    Case("tail", "0.3M", 256),
    Case("tail", "4M", 64),
    Case("tail", "4M", 256),
]


def case_named(name: str) -> Case:
    """Raises ValueError for a name that isn't in the table."""
    for case in CASES:
        if case.name == name:
            return case
    raise ValueError(f"no case {name}: one of {', '.join(case.name for case in CASES)}")


def write_dataset(case: Case, path: Path, count: int, seed: int) -> Path:
    """Writes `count` rows of the case as JSON lines to `path`, and returns it."""
    path.write_text("".join(json.dumps(row) + "\n" for row in case.module.rows(count, seed)))
    return path
