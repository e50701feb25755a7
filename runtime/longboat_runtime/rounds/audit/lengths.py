"""The lengths of all responses to one drawn prompt, in tokens or in milliseconds. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptLengths:
    """Response lengths of one prompt over an audited window, in tokens or all in milliseconds, in any order.

    `finished` and `cut` are its first launch: responses that ended on their own (also at the length limit), and responses
    known only up to this length, where they are censored. `later` are responses that ended in later attempts. `trained` are the
    samples that a step was made of, whatever their attempt; empty for a prompt that was dropped.

    Raises ValueError if the first launch has no response, a finished response no length, a cut response a negative length, or if a
    trained sample didn't finish.
    """

    domain: str
    finished: tuple[int, ...]
    cut: tuple[int, ...]
    later: tuple[int, ...]
    trained: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.launched:
            raise ValueError("a prompt without a response at its first launch")
        if min((*self.finished, *self.later), default=1) < 1 or min(self.cut, default=0) < 0:
            raise ValueError(f"not lengths of responses: {self}")
        if not {*self.trained} <= {*self.finished, *self.later}:
            raise ValueError(f"trained samples that did not finish: {self}")

    @property
    def launched(self) -> int:
        """The number of responses in the first launch."""
        return len(self.finished) + len(self.cut)

    @property
    def longest(self) -> int:
        return max((*self.finished, *self.cut, *self.later))
