"""The course of one simulated episode. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from longboat_runtime.samples import SegmentSize, VersionSpan, joined
from longboat_runtime.simulate.engine import Response
from longboat_runtime.simulate.turns import Turn


class Episode:
    """Plays the `turns` of a sample, at least one, behind a prompt of `prompt_tokens`.

    `spans` are of the tokens that it has drawn in all turns. After a turn, it is back from the environment at the time `back_at`.
    `engine` drew the last turn that ended. Raises ValueError without a turn.
    """

    __slots__ = ("_context", "_ended", "_left", "_prompt", "_reported", "_turns", "back_at", "engine", "spans")

    def __init__(self, turns: Sequence[Turn], prompt_tokens: int) -> None:
        if not turns:
            raise ValueError("an episode needs a turn")
        self._turns, self._ended = turns, 0
        self._left = turns[0].tokens
        self._prompt = self._context = prompt_tokens
        self.spans: tuple[VersionSpan, ...] = ()
        self._reported = 0
        self.back_at = 0.0
        self.engine = ""

    @property
    def tokens(self) -> int:
        """The tokens that it has drawn in all turns."""
        return self.spans[-1].end if self.spans else 0

    @property
    def needs(self) -> tuple[int, int, bool]:
        """The tokens left to draw in this turn, all those before them, and whether further turns follow."""
        return self._left, self._context, self._ended + 1 < len(self._turns)

    @property
    def done(self) -> bool:
        """Whether all turns have ended."""
        return self._ended == len(self._turns)

    @property
    def segments(self) -> tuple[SegmentSize, ...]:
        """Returns what `events.Generated` has: all its turns are one segment."""
        whole = SegmentSize(self._context, self.tokens)
        return () if whole.computed == self._prompt + whole.trained else (whole,)

    def draw(self, response: Response) -> bool:
        """Takes what an engine drew of this turn; returns whether that ends the turn."""
        self.spans = joined(self.spans, response.spans)
        self._left -= response.tokens
        self._context += response.tokens
        return not self._left

    def end_turn(self, engine: str, now: float) -> bool:
        """Ends a turn that the engine has drawn; returns whether the environment needs time after it."""
        turn = self._turns[self._ended]
        self._ended += 1
        if not self.done:
            self._left = self._turns[self._ended].tokens
            self._context += turn.added
        self.engine, self.back_at = engine, now + turn.seconds
        return turn.seconds > 0

    def report(self) -> int:
        """Returns the tokens that it has drawn since the last report."""
        unreported, self._reported = self.tokens - self._reported, self.tokens
        return unreported
