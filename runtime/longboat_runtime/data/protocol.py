"""The protocol of a source of prompts, and of the check that it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from longboat_runtime.samples import PromptId, Row

# Takes a row's columns, domain, ground truth and place (for people). Raises SpecProblem if it can't be graded.
RowCheck = Callable[[Mapping[str, Any], str, Any, str], None]


class PromptSource(Protocol):
    """Rows in a resumable order."""

    @property
    def skipped(self) -> int | None:
        """Rows that are never drawn because they are too long, as far as they are known; None if such rows fail the job."""

    def draw(self, count: int, domain: str = "") -> list[PromptId]:
        """The next prompts of a domain (of all rows where the job has no quotas); wraps into a new epoch with its own permutation."""

    def row(self, prompt: PromptId) -> Row:
        """The row of a prompt. It is kept until `forget`, and can be had again after that."""

    def forget(self, prompts: Iterable[PromptId]) -> None:
        """The rows of these prompts aren't needed for now."""

    def domain(self, row: int) -> str:
        """The domain of a row; empty if rows have none."""

    def state(self) -> Mapping[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...
