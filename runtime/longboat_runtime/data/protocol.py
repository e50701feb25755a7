"""The protocol of a source of prompts, and of the check of its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from longboat_runtime.samples import PromptId, Row

# Takes a row's columns, domain, ground truth and place (for people). Raises SpecProblem if it can't be graded.
RowCheck = Callable[[Mapping[str, Any], str, Any, str], None]


class PromptSource(Protocol):
    """Draws prompts from rows, in a resumable order."""

    @property
    def skipped(self) -> int | None:
        """The number of rows that are too long, which are never drawn; of generated rows, those that draws have met.

        None if such rows fail the job.
        """

    def draw(self, count: int, domain: str = "") -> list[PromptId]:
        """Draws the next prompts of a domain, or of all rows where the job has no quotas. Shuffled, each epoch has its own permutation."""

    def row(self, prompt: PromptId) -> Row:
        """Returns the row of a prompt. It is cached until `forget`, and can be read again after that."""

    def forget(self, prompts: Iterable[PromptId]) -> None:
        """Drops the rows of these prompts from the cache."""

    def domain(self, row: int) -> str:
        """Returns the domain of a row; empty if rows have none."""

    def state(self) -> Mapping[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...
