"""Names, seeds and shapes of prompts and samples, shared by all components of the runtime. Pure.

A prompt's identity is (epoch, dataset row), never its text. `attempt` counts launches of the prompt's group, `index` the
samples of one attempt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]


class PromptId(NamedTuple):
    """One draw of one dataset row."""

    epoch: int
    row: int

    def __str__(self) -> str:
        return f"e{self.epoch}r{self.row}"


class SampleId(NamedTuple):
    """One response to one prompt. Orders by epoch, row, attempt, index, as batches do."""

    epoch: int
    row: int
    attempt: int
    index: int  # type: ignore[assignment]  # hides the method of tuples

    @property
    def prompt(self) -> PromptId:
        return PromptId(self.epoch, self.row)

    def __str__(self) -> str:
        return f"e{self.epoch}r{self.row}a{self.attempt}s{self.index}"


def sample_seed(job: str, seed: int, sample: SampleId) -> int:
    """Returns 31 bits of blake2b over job, `rounds.seed` and the sample's id, the same on every machine and in every process.

    `job` stands for the job that the training started as: its uid or, without Kubernetes, its name. A retried sample keeps its seed; a new
    attempt gets another one.
    """
    return _hashed("/".join((job, str(seed), *map(str, sample))))


def continued_seed(seed: int, begun: int) -> int:
    """Returns the seed with which a sample with this seed continues after `begun` tokens.

    If there are any, it differs, since the same seed would draw the next tokens with the random numbers of the first.
    """
    return _hashed(f"{seed}+{begun}") if begun else seed


def _hashed(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=4).digest(), "big") >> 1


class FinishReason(StrEnum):
    """Says why an engine stopped. ABORT carries the tokens made so far; REPETITION marks a loop ended by the engine."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    REPETITION = "repetition"


class VersionSpan(NamedTuple):
    """Tokens `start` (inclusive) to `end` (exclusive) of those that the model drew are from the weights of `version`."""

    version: int
    start: int
    end: int


def joined(begun: tuple[VersionSpan, ...], spans: tuple[VersionSpan, ...]) -> tuple[VersionSpan, ...]:
    """Joins the spans `begun` of a response's first tokens and `spans` of those behind them (counted from 0)."""
    offset = begun[-1].end if begun else 0
    shifted = [VersionSpan(version, start + offset, end + offset) for version, start, end in spans]
    if begun and shifted and begun[-1].version == shifted[0].version:
        begun, first = begun[:-1], begun[-1]
        shifted[0] = VersionSpan(first.version, first.start, shifted[0].end)
    return (*begun, *shifted)


def first_tokens(spans: tuple[VersionSpan, ...], tokens: int) -> tuple[VersionSpan, ...]:
    """Cuts spans to the first `tokens` tokens."""
    return tuple(VersionSpan(version, start, min(end, tokens)) for version, start, end in spans if start < tokens)


@dataclass(frozen=True, slots=True)
class Row:
    """A dataset row ready to be launched.

    `messages` are those of a conversational row as its prompt was made of them; `prefill` is the part of `text` with which the
    response begins. `template_arguments` are those of the chat template, the job's included.
    """

    prompt: PromptId
    text: str
    token_ids: tuple[int, ...]
    domain: str = ""
    ground_truth: Any = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    messages: Sequence[Mapping[str, Any]] | None = None
    prefill: str = ""
    template_arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Repetition:
    """A response ends once its last tokens are `count` copies of one pattern of at most `pattern_tokens` tokens."""

    pattern_tokens: int
    count: int


@dataclass(frozen=True, slots=True)
class Sampling:
    """Says how tokens are drawn. `temperature` 0 is greedy; that, `top_k` (0: all tokens) and `min_p` are for held-out evaluation only.

    A response ends with one of `stop_token_ids`, or before one of the texts `stop`; its text has what ended it only if `include_stop`.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    repetition: Repetition | None = None
    top_k: int = 0
    min_p: float = 0.0


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """Holds what an engine needs to make one sample.

    A sample that continues has spans `begun` of its first tokens, which the store has; `sampling.max_tokens` counts them too, and
    `seed` is that of its first token.
    """

    id: SampleId
    prompt_ids: tuple[int, ...]
    seed: int
    sampling: Sampling
    evaluation: bool = False
    begun: tuple[VersionSpan, ...] = ()

    @property
    def begun_tokens(self) -> int:
        return self.begun[-1].end if self.begun else 0

    @property
    def next_seed(self) -> int:
        """The seed by which the tokens behind those that it has are drawn."""
        return continued_seed(self.seed, self.begun_tokens)

    @property
    def unstarted(self) -> FinishedSample:
        """The sample, aborted before an engine had it: it has what it had before."""
        return FinishedSample(
            self.id,
            len(self.prompt_ids),
            self.begun_tokens,
            FinishReason.ABORT,
            self.begun,
            "",
            evaluation=self.evaluation,
        )


class SpecialToken(NamedTuple):
    """The text of a special token, and before which character of the response's text it stands."""

    at: int
    text: str


class SegmentSize(NamedTuple):
    """Counts the tokens of a segment: all that a forward pass computes, and those of them that are trained."""

    computed: int
    trained: int


@dataclass(frozen=True, slots=True)
class SampleSize:
    """The tokens of a sample by segments, and whether it was cut off by maxTokens."""

    segments: tuple[SegmentSize, ...]
    truncated: bool

    @property
    def computed(self) -> int:
        return sum(segment.computed for segment in self.segments)

    @property
    def trained(self) -> int:
        return sum(segment.trained for segment in self.segments)


class TokenRange(NamedTuple):
    """The tokens of a segment from `start` (inclusive) to `end` (exclusive)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A token sequence of a sample. A plain response is one, behind its prompt.

    `trained` are the turns that are trained here: runs of tokens that the model drew, each behind exactly the tokens before it. All other
    tokens are context: a prompt, what an environment returned, turns that another segment trains. `logprobs` and `spans` are of the trained
    tokens alone, in their order; `logprobs` are natural logs of the probability the engine drew the token with; at temperature 0, of the
    model's probability.

    Raises ValueError unless there is a turn, turns are in order, a token stands before each, and each of their tokens has a log-prob.
    """

    token_ids: IntArray
    trained: tuple[TokenRange, ...]
    logprobs: FloatArray
    spans: tuple[VersionSpan, ...]

    def __post_init__(self) -> None:
        places = [1, *chain.from_iterable(self.trained), len(self.token_ids)]
        if not self.trained or places != sorted(places):
            raise ValueError(f"not turns of a segment of {len(self.token_ids)} tokens: {self.trained}")
        if self.size.trained != len(self.logprobs):
            raise ValueError(f"{len(self.logprobs)} log-probs for {self.size.trained} trained tokens")

    @classmethod
    def single_turn(
        cls, prompt_ids: IntArray, token_ids: IntArray, logprobs: FloatArray, spans: tuple[VersionSpan, ...]
    ) -> Segment:
        """Makes the segment of a prompt and its response, which has a log-prob for each token."""
        tokens = np.concatenate([prompt_ids, token_ids])
        return cls(tokens, (TokenRange(len(prompt_ids), len(tokens)),), logprobs, spans)

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        """The positions of the trained tokens."""
        return np.concatenate([np.arange(start, end) for start, end in self.trained])

    @property
    def size(self) -> SegmentSize:
        return SegmentSize(len(self.token_ids), sum(end - start for start, end in self.trained))


class EpisodeEnd(StrEnum):
    """Says how an episode ended. One that fails in another way is lost, and isn't in the store.

    FINISHED: its environment returned. TIMEOUT: it took more seconds in the environment than its deadline allows.
    """

    FINISHED = "finished"
    TIMEOUT = "timeout"


class EpisodeTurn(NamedTuple):
    """A turn of an episode, for people and rewards.

    `new` are the messages before it that the turn that it `continues` doesn't have, `message` is the model's, `text` what it drew with
    special tokens; `seconds` are those until it was drawn. `segment` is the number of the sample's segment that trains it. If it began one,
    `beginning` says why (`recorder.record.Beginning`), and `differs` is the number of the first message that no earlier turn has.
    """

    new: Sequence[Mapping[str, Any]]
    message: Mapping[str, Any]
    text: str
    tokens: int
    finish_reason: FinishReason
    seconds: float
    segment: int
    continues: int | None = None
    beginning: str | None = None
    differs: int | None = None


@dataclass(frozen=True, slots=True)
class Episode:
    """What a sample's environment made of it.

    `reward` is None if the environment returned none, so that rewards grade the episode, and for a TIMEOUT. It is the sum of `rewards`, those
    of turns, if the environment returned several. `environment_seconds` are those in which no request of the episode was open at the
    recorder. `undelivered` counts turns that were drawn and that nobody received, `repeats` requests that got an earlier answer, `ignored`
    the keys of requests that don't hold.
    """

    environment: str
    end: EpisodeEnd
    reward: float | None
    environment_seconds: float
    rewards: tuple[float, ...] | None = None
    environment_cpu_seconds: float = 0.0
    message: str = ""
    turns: tuple[EpisodeTurn, ...] = ()
    undelivered: int = 0
    repeats: int = 0
    ignored: Mapping[str, int] = field(default_factory=dict)

    @property
    def requests(self) -> dict[str, int]:
        """Counts what a run should be told of its requests, where there is any: keys `ignored`, `repeats` and turns `undelivered`."""
        counts = {"ignored": sum(self.ignored.values()), "repeats": self.repeats, "undelivered": self.undelivered}
        return {name: count for name, count in counts.items() if count}

    @property
    def outcome(self) -> EpisodeOutcome:
        return EpisodeOutcome(self.environment, self.end, self.reward, self.message)

    @property
    def messages(self) -> list[Mapping[str, Any]]:
        """The messages of the last turn's conversation, its reply included."""
        chain, number = [], len(self.turns) - 1 if self.turns else None
        while number is not None:
            chain.append(self.turns[number])
            number = chain[-1].continues
        return [message for turn in reversed(chain) for message in (*turn.new, turn.message)]


class EpisodeOutcome(NamedTuple):
    """The part of an `Episode` that says what it was worth; `message` is for people."""

    environment: str
    end: EpisodeEnd
    reward: float | None
    message: str = ""


class Response(NamedTuple):
    """Holds what a grader needs of a generated sample: its last reply, and how many `tokens` the model drew in all of its turns.

    `special` are the special tokens that `text` doesn't have. `token_ids` are there where they were asked for, `episode` if an environment
    played the sample.
    """

    text: str
    finish_reason: FinishReason
    tokens: int
    special: tuple[SpecialToken, ...] = ()
    token_ids: IntArray | None = None
    episode: Episode | None = None


@dataclass(frozen=True, slots=True)
class GeneratedSample:
    """A finished (or aborted) sample with all its data; it goes to the sample store, never through the driver.

    It has one or more `segments`, which train each token that the model drew once, in the context in which it was drawn; the first begins
    with the sample's prompt. `reply` is the number of the segment whose last turn is the sample's last reply. `text` is that reply, decoded
    without the `special` tokens; if a stop text ended it, only what is before that, unless `Sampling.include_stop`. `episode` is there if an
    environment played it.
    """

    id: SampleId
    segments: tuple[Segment, ...]
    finish_reason: FinishReason
    text: str
    engine: str
    evaluation: bool = False
    special: tuple[SpecialToken, ...] = ()
    reply: int = 0
    episode: Episode | None = None

    @property
    def prompt_ids(self) -> IntArray:
        """The tokens before the first that the model drew."""
        first = self.segments[0]
        return first.token_ids[: first.trained[0].start]

    @property
    def token_ids(self) -> IntArray:
        """The tokens of the last reply."""
        segment = self.segments[self.reply]
        return segment.token_ids[slice(*segment.trained[-1])]

    @property
    def logprobs(self) -> FloatArray:
        """The log-probs of the last reply."""
        logprobs = self.segments[self.reply].logprobs
        return logprobs[len(logprobs) - len(self.token_ids) :]

    @property
    def spans(self) -> tuple[VersionSpan, ...]:
        """The spans of all tokens that the model drew, segment after segment."""
        return reduce(joined, (segment.spans for segment in self.segments))

    @property
    def response(self) -> Response:
        return Response(self.text, self.finish_reason, self.size.trained, self.special, episode=self.episode)

    @property
    def size(self) -> SampleSize:
        return SampleSize(tuple(segment.size for segment in self.segments), self.finish_reason is FinishReason.LENGTH)

    @property
    def summary(self) -> FinishedSample:
        size, prompt_tokens = self.size, len(self.prompt_ids)
        plain = size.segments == (SegmentSize(prompt_tokens + size.trained, size.trained),)
        episode = self.episode
        return FinishedSample(
            id=self.id,
            prompt_tokens=prompt_tokens,
            tokens=size.trained,
            finish_reason=self.finish_reason,
            spans=self.spans,
            engine=self.engine,
            evaluation=self.evaluation,
            segments=() if plain else size.segments,
            turns=sum(len(segment.trained) for segment in self.segments),
            environment_seconds=episode.environment_seconds if episode else 0.0,
            environment_cpu_seconds=episode.environment_cpu_seconds if episode else 0.0,
            requests=episode.requests if episode else {},
        )


@dataclass(frozen=True, slots=True)
class FinishedSample:
    """Tells the driver about a generated sample: ids and scalars. The store holds the sample by then, unless it has no token.

    `tokens` are those that the model drew, in so many `turns`. `segments` is empty if the only one is the prompt and these.
    `environment_seconds` are those of an episode in which it didn't wait for the model, `environment_cpu_seconds` those of its processes,
    and `requests` counts about those that the model got (`Episode.requests`).
    """

    id: SampleId
    prompt_tokens: int
    tokens: int
    finish_reason: FinishReason
    spans: tuple[VersionSpan, ...]
    engine: str
    evaluation: bool = False
    segments: tuple[SegmentSize, ...] = ()
    turns: int = 1
    environment_seconds: float = 0.0
    environment_cpu_seconds: float = 0.0
    requests: Mapping[str, int] = field(default_factory=dict)

    @property
    def computed_tokens(self) -> int:
        """The tokens of all segments, context included: what a forward pass computes."""
        return sum(segment.computed for segment in self.segments) or self.prompt_tokens + self.tokens


class LossCause(StrEnum):
    """Says what lost a sample: an ENGINE, or its ENVIRONMENT, which is the episode's code, its process, or the pod that played it."""

    ENGINE = "engine"
    ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True)
class LostSample:
    """Tells the driver that a running sample was lost by its engine or environment, or that the store has lost a sample's data.

    The engine is gone, or an update of its weights failed: it then gives up all that ran in it, and may live on.
    `engine_died` says that its engine died on its own, in a pod that stayed up: this sample, retried, may kill the next one.
    `begun` are the spans of its first tokens that the store still has.
    `held_up` says that nothing in the episode lost it: its pod went, or the server that played it. Its time so far says nothing about it.
    """

    id: SampleId
    reason: str
    evaluation: bool = False
    engine_died: bool = False
    begun: tuple[VersionSpan, ...] = ()
    cause: LossCause = LossCause.ENGINE
    held_up: bool = False


@dataclass(frozen=True, slots=True)
class StartedSample:
    """Tells the driver that a pod has begun the episode of a sample, which has waited for that for so many seconds.

    Only environments have it: until then a sample that was submitted isn't running.
    """

    id: SampleId
    waited_seconds: float
    evaluation: bool = False


@dataclass(frozen=True, slots=True)
class MovedSample:
    """A running sample that moves from engine `source` to `target` and continues after the tokens that the store has, with these spans."""

    id: SampleId
    spans: tuple[VersionSpan, ...]
    source: str
    target: str
    evaluation: bool = False


FleetReport = FinishedSample | LostSample | MovedSample | StartedSample


class GradeKind(StrEnum):
    """The outcome of a grading. Each is counted separately; a TIMEOUT has a score too (`reward.combine`).

    NOT_APPLICABLE: every function for the row said that it doesn't apply to the sample. It is trained with the advantage 0.
    """

    SCORED = "scored"
    WRONG_FORMAT = "wrong_format"
    TIMEOUT = "timeout"
    GRADER_ERROR = "grader_error"
    NOT_APPLICABLE = "not_applicable"


# Grades without a score.
UNSCORED = (GradeKind.GRADER_ERROR, GradeKind.NOT_APPLICABLE)


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """A learned limit of own seconds (`GradeTime`); None where none is known. An `audit` runs to the hard limit all the same."""

    seconds: float | None = None
    audit: bool = False

    @property
    def in_force(self) -> float | None:
        return None if self.audit else self.seconds


@dataclass(frozen=True, slots=True)
class GradeTime:
    """Measures one reward function, where timeouts are learned.

    `seconds` are its own: those on the wall without those that it waited for a CPU, or its CPU seconds if they are more. If a grade has
    several test cases, they are those of the one that took longest, but `cpu_seconds` those of all. `limit` and `audit` are those of its
    `TimeLimit`; `killed` says that the limit ended it, or a test case.
    """

    seconds: float
    cpu_seconds: float
    limit: float | None = None
    audit: bool = False
    killed: bool = False


@dataclass(frozen=True, slots=True)
class Grade:
    """The outcome of all reward functions on one sample: the weighted sum, and by name the `parts`, None for those that timed out.

    `times` has only functions whose timeouts are learned, `metrics` what functions measured, by REWARD/KEY.
    """

    kind: GradeKind
    score: float
    seconds: float
    message: str = ""
    parts: Mapping[str, float | None] = field(default_factory=dict)
    times: Mapping[str, GradeTime] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
