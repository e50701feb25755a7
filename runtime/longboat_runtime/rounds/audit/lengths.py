"""What became of one drawn prompt, in lengths of responses. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptLengths:
    """Response lengths of one prompt over an audited window, in tokens; their order means nothing.

    `finished` and `cut` are its first launch: responses that ended by themselves (a stop or the length limit), and those
    aborted with that many tokens, which are censored there. `later` are responses that ended in later attempts. `trained`
    are the samples a step was made of, of whichever attempt; empty for a prompt that was dropped.

    Raises ValueError without a response at the first launch, for a finished response without tokens, for a negative cut and for
    a trained sample that didn't finish.
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
        """Responses of the first launch."""
        return len(self.finished) + len(self.cut)

    @property
    def longest(self) -> int:
        return max((*self.finished, *self.cut, *self.later))
