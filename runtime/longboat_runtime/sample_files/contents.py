"""Decides what goes into the file of a step: which steps have one, which groups are in it, what is said about a sample. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from longboat_runtime.samples import FinishReason, GradeKind, PromptId, SampleId, SegmentSize, VersionSpan


class Fate(StrEnum):
    """Says what became of a sample's group in the step: trained, given up for this epoch, or put back to be generated again later."""

    KEPT = "kept"
    DROPPED = "dropped"
    DEFERRED = "deferred"


@dataclass(frozen=True, slots=True)
class SampleFacts:
    """What a file says of a finished sample, except for prompt and response, which only the store has.

    `reason` says why its group was dropped or deferred. `score` is the reward it was trained with or, if it wasn't trained, the
    weighted sum of its `parts`; None without a grade or with a grader error. `advantage` is None unless it was trained. `segments` and
    `environment_seconds` are those of an episode. `environment_error` is why its environment has lost it, or another sample of its group if
    that was dropped for it.
    """

    id: SampleId
    domain: str
    fate: Fate
    reason: str | None
    prompt_tokens: int
    tokens: int
    finish_reason: FinishReason
    spans: tuple[VersionSpan, ...]
    engine: str
    grade: GradeKind | None = None
    score: float | None = None
    parts: Mapping[str, float | None] = field(default_factory=dict)
    message: str | None = None
    grading_seconds: float | None = None
    advantage: float | None = None
    segments: tuple[SegmentSize, ...] = ()
    environment_seconds: float | None = None
    environment_error: str | None = None


@dataclass(frozen=True, slots=True)
class SampleGroup:
    """The finished samples, at least one, of one attempt at a prompt."""

    samples: tuple[SampleFacts, ...]

    @property
    def prompt(self) -> PromptId:
        return self.samples[0].id.prompt

    @property
    def attempt(self) -> int:
        return self.samples[0].id.attempt

    @property
    def fate(self) -> Fate:
        return self.samples[0].fate

    @property
    def ids(self) -> list[SampleId]:
        return [sample.id for sample in self.samples]

    @property
    def scores(self) -> list[float]:
        return [sample.score for sample in self.samples if sample.score is not None]


@dataclass(frozen=True, slots=True)
class SampleFileRequest:
    """The file of one step, as the driver orders it from the trainer's first rank.

    `began` is the step at which this incarnation began: what earlier ones wrote beyond it doesn't count. The newest `keep` files
    stay.
    """

    incarnation: int
    step: int
    round: int
    samples: tuple[SampleFacts, ...]
    keep: int
    began: int


def is_due(step: int, steps: int, every: int) -> bool:
    """Whether step `step` of `steps` has a file: the first, each `every` steps, and the last."""
    return step == 1 or step % every == 0 or step >= steps


def choose(groups: Iterable[SampleGroup], count: int | None, seed: int, step: int) -> list[SampleGroup]:
    """Chooses at most `count` of the step's groups, sorted by prompt; all of them if `count` is None.

    The choice is the same for the same groups in any order, `seed` (the job's) and `step`. First come one group of each fate,
    then those with the longest response, the best and the worst score, then others; by chance where several qualify.
    """
    by_chance = _by_chance(groups, seed, step)
    wanted = [*_firsts(by_chance, 1), *_extremes(by_chance), *by_chance]
    chosen = list({(group.prompt, group.attempt): group for group in wanted}.values())
    return sorted(chosen[:count], key=lambda group: group.samples[0].id)


def candidates(groups: Iterable[SampleGroup], count: int | None, seed: int, step: int) -> list[SampleGroup]:
    """Returns the groups that `choose` may take, whatever groups come later: at most `count` of each fate (None: all) and three more.

    The data of the others needn't be held until the step is done.
    """
    by_chance = _by_chance(groups, seed, step)
    wanted = [*_firsts(by_chance, count), *_extremes(by_chance)]
    return list({(group.prompt, group.attempt): group for group in wanted}.values())


def _by_chance(groups: Iterable[SampleGroup], seed: int, step: int) -> list[SampleGroup]:
    def key(group: SampleGroup) -> tuple[bytes, PromptId, int]:
        drawn = repr((seed, step, tuple(group.prompt), group.attempt)).encode()
        return hashlib.blake2b(drawn, digest_size=8).digest(), group.prompt, group.attempt

    return sorted(groups, key=key)


def _firsts(groups: Sequence[SampleGroup], count: int | None) -> list[SampleGroup]:
    """Returns the first `count` groups of each fate; all of them if `count` is None."""
    return [group for fate in Fate for group in [group for group in groups if group.fate is fate][:count]]


def _extremes(groups: Sequence[SampleGroup]) -> list[SampleGroup]:
    """Returns the first groups with the longest response, the best and the worst score, if there are any; one may come more than once."""
    graded = [group for group in groups if group.scores]
    keys: list[tuple[Sequence[SampleGroup], Callable[[SampleGroup], float]]] = [
        (groups, lambda group: max(sample.tokens for sample in group.samples)),
        (graded, lambda group: max(group.scores)),
        (graded, lambda group: -min(group.scores)),
    ]
    return [max(candidates, key=key) for candidates, key in keys if candidates]
