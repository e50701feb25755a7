"""Draws the turns of episodes. Pure.

A sample of a job with environments is an episode: the model draws some tokens, then the environment works with them, and so on. A plain
response is an episode of one turn, after which there is nothing to wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from longboat_runtime.samples import SampleId
from longboat_runtime.simulate.chance import uniform
from longboat_runtime.simulate.lengths import TwoLevel


@dataclass(frozen=True, slots=True)
class Turn:
    """The model draws `tokens`, at least 1. Then the sample is away for `seconds`, and its context grows by `added` tokens.

    The episode ends when the sample is back from its last turn. Raises ValueError for impossible values.
    """

    tokens: int
    seconds: float = 0.0
    added: int = 0

    def __post_init__(self) -> None:
        if self.tokens < 1 or min(self.seconds, self.added) < 0:
            raise ValueError(f"a turn has a token, and seconds and added tokens of 0 or more: {self}")


# Gives each sample, by its id, its response tokens, at least 1, or its turns, at least one, unless it is stopped.
SampleDistribution = Callable[[SampleId], int | Sequence[Turn]]


@dataclass(frozen=True, slots=True)
class TwoLevelTurns:
    """Log-normal, prompt effect x effect of its own: how many turns an episode has, the tokens of each turn and the seconds behind it.

    Where two of the three have one seed, they have the same effects: what has more tokens has more seconds. An episode ends with the turn in
    which it has drawn `max_tokens`. Each turn is followed by `added` tokens of the environment.
    """

    turns: TwoLevel
    tokens: TwoLevel
    seconds: TwoLevel
    max_tokens: int
    added: int = 0

    def __call__(self, sample: SampleId) -> Sequence[Turn]:
        turns, remaining = list[Turn](), self.max_tokens
        for number in range(self.turns(sample)):
            tokens = min(self.tokens(sample, number), remaining)
            seconds = min(self.seconds.draw(sample, number), self.seconds.longest)
            turns.append(Turn(tokens, seconds, self.added))
            remaining -= tokens
            if not remaining:
                break
        return turns


@dataclass(frozen=True, slots=True)
class RecordedEpisodes:
    """Each drawn prompt is like one that was recorded: the samples of a launch are that prompt's episodes, in turn from a random one on."""

    prompts: Sequence[Sequence[Sequence[Turn]]] = field(repr=False)
    seed: int = 0

    @classmethod
    def from_arrays(
        cls,
        prompts: Sequence[int],
        turns: Sequence[int],
        tokens: Sequence[int],
        seconds: Sequence[float],
        added: Sequence[int],
        seed: int = 0,
    ) -> RecordedEpisodes:
        """Makes the distribution of recorded episodes: each one's prompt, turns, and what all its turns have together.

        The tokens, seconds and added tokens of an episode are divided evenly among its turns. Raises ValueError without an episode, for
        one that has no turn or fewer tokens than turns, and for arrays of different lengths.
        """
        episodes: dict[int, list[Sequence[Turn]]] = {}
        for prompt, count, drawn, away, new in zip(prompts, turns, tokens, seconds, added, strict=True):
            episodes.setdefault(prompt, []).append(_even_turns(count, drawn, away, new))
        if min(turns, default=0) < 1:
            raise ValueError("there must be an episode, and each must have a turn")
        return cls([*episodes.values()], seed)

    def __call__(self, sample: SampleId) -> Sequence[Turn]:
        episodes = self.prompts[int(uniform(self.seed, sample.epoch, sample.row) * len(self.prompts))]
        start = int(uniform(self.seed, *sample.prompt, sample.attempt, "start") * len(episodes))
        return episodes[(start + sample.index) % len(episodes)]


def _even_turns(turns: int, tokens: int, seconds: float, added: int) -> Sequence[Turn]:
    """Divides an episode evenly into turns."""
    return [
        Turn(_share(tokens, number, turns), seconds / turns, _share(added, number, turns)) for number in range(turns)
    ]


def _share(total: int, number: int, parts: int) -> int:
    return (number + 1) * total // parts - number * total // parts
