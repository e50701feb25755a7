"""Response lengths of the prompts of the last periods, folded from events. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from longboat_runtime.rounds import events
from longboat_runtime.rounds.audit.lengths import PromptLengths
from longboat_runtime.rounds.events import DeferReason
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.samples import PromptId, SampleId

# How many periods (short rounds and the long one that ends them) are audited together: one alone has too few prompts. They are
# part of a checkpoint, so fewer are kept if they are large.
WINDOW_PERIODS = 8
WINDOW_PROMPTS = 2048


@dataclass(slots=True)
class EnvironmentSeconds:
    """The seconds that a prompt's episodes spent in their environments; see `PromptHistory`."""

    finished: dict[int, dict[int, float]] = field(default_factory=dict)
    cut: dict[int, float] = field(default_factory=dict)
    trained: list[float] = field(default_factory=list)


@dataclass(slots=True)
class PromptHistory:
    """A prompt that was first launched in `period`, with `samples` responses; if `audited`, in an audit round.

    `finished` has the response tokens of finished samples by attempt and index, `cut` the tokens so far of first-attempt samples
    that were stopped, by index; `trained` are the lengths in the batch. `seconds` has all of that for the seconds of episodes in their
    environments. A prompt that was `held_up` once was deferred for a reason that has nothing to do with its length.
    """

    prompt: PromptId
    period: int
    samples: int
    audited: bool = False
    finished: dict[int, dict[int, int]] = field(default_factory=dict)
    cut: dict[int, int] = field(default_factory=dict)
    trained: list[int] = field(default_factory=list)
    seconds: Annotated[EnvironmentSeconds | None, Field(exclude_if=lambda seconds: seconds is None)] = None
    held_up: Annotated[bool, Field(exclude_if=lambda held_up: not held_up)] = False

    def lengths(self, domain: str) -> PromptLengths:
        """Returns the prompt's lengths in tokens.

        A first response that neither finished nor was returned counts as cut at 0 tokens: nothing is known.
        """
        return self._lengths(domain, self.finished, self.cut, self.trained)

    def milliseconds(self, domain: str) -> PromptLengths:
        """Returns the prompt's lengths as milliseconds in environments, as `lengths` does; a response that finished has one at least."""
        seconds = self.seconds or EnvironmentSeconds()
        finished = {
            attempt: {index: _milliseconds(seconds.finished.get(attempt, {}).get(index, 0.0)) for index in lengths}
            for attempt, lengths in self.finished.items()
        }
        cut = {index: round(1000 * each) for index, each in seconds.cut.items()}
        trained = [*map(_milliseconds, seconds.trained)] or [_milliseconds(0.0)] * len(self.trained)
        return self._lengths(domain, finished, cut, trained)

    def _lengths(
        self, domain: str, finished: Mapping[int, Mapping[int, int]], cut: Mapping[int, int], trained: Sequence[int]
    ) -> PromptLengths:
        first = finished.get(0, {})
        missing = [index for index in range(self.samples) if index not in first]
        return PromptLengths(
            domain=domain,
            finished=tuple(first.values()),
            cut=tuple(cut.get(index, 0) for index in missing),
            later=tuple(length for attempt, lengths in finished.items() if attempt for length in lengths.values()),
            trained=tuple(trained),
        )


def _milliseconds(seconds: float) -> int:
    return max(1, round(1000 * seconds))


_PROMPTS = TypeAdapter(list[PromptHistory])
_ROUNDS = TypeAdapter(list[events.RoundOpened])


def _is_audit(round_: events.RoundOpened | None) -> bool:
    """Whether this is an audit round: its prompts are fresh, and all its responses are waited for."""
    return round_ is not None and round_.kind is RoundKind.SHORT and not round_.racing


class LengthHistory:
    """Folds events in the order of their numbers. `period` counts the periods that have ended."""

    def __init__(self) -> None:
        self.period = 0
        self._prompts: dict[PromptId, PromptHistory] = {}
        self._rounds: dict[int, events.RoundOpened] = {}

    def fold(self, entry: events.Entry) -> None:
        """Folds an entry of the log."""
        match entry.body:
            case events.RoundOpened(round=number) as opened:
                self._rounds[number] = opened
            case events.Launched(round=number, prompt=prompt, attempt=0, samples=samples):
                self._prompts[prompt] = PromptHistory(prompt, self.period, samples, _is_audit(self._rounds.get(number)))
            case (
                events.Generated(sample=sample, tokens=tokens, environment_seconds=seconds)
                | events.Stopped(sample=sample, tokens=tokens, finished=True, environment_seconds=seconds)
            ):
                if history := self._prompts.get(sample.prompt):
                    history.finished.setdefault(sample.attempt, {})[sample.index] = tokens
                    if seconds:
                        own = history.seconds = history.seconds or EnvironmentSeconds()
                        own.finished.setdefault(sample.attempt, {})[sample.index] = seconds
            case events.Stopped(sample=SampleId(attempt=0) as sample, tokens=tokens, environment_seconds=seconds):
                if history := self._prompts.get(sample.prompt):
                    history.cut[sample.index] = tokens
                    if seconds:
                        own = history.seconds = history.seconds or EnvironmentSeconds()
                        own.cut[sample.index] = seconds
            case events.GroupDeferred(prompt=prompt, reason=DeferReason.HELD_UP):
                if history := self._prompts.get(prompt):
                    history.held_up = True
            case events.StepCommitted(round=number, samples=samples, dropped=dropped):
                for sample in samples if dropped is None else ():
                    if history := self._prompts.get(sample.prompt):
                        history.trained.append(history.finished[sample.attempt][sample.index])
                        if history.seconds:
                            of_attempt = history.seconds.finished.get(sample.attempt, {})
                            history.seconds.trained.append(of_attempt.get(sample.index, 0.0))
                ended = self._rounds.pop(number, None)
                if ended and ended.kind is RoundKind.LONG:
                    self._end_period()

    def window(self) -> list[PromptHistory]:
        """Returns the prompts first launched in the last WINDOW_PERIODS complete periods; in fewer (one at least) above WINDOW_PROMPTS.

        Without those that were held up.
        """
        return [history for history in self._prompts.values() if history.period < self.period and not history.held_up]

    def newest(self, count: int) -> list[PromptHistory]:
        """Returns the last `count` prompts by launch that were trained, have a stopped first response, or finished all first responses."""
        complete = [
            history
            for history in self._prompts.values()
            if history.trained or history.cut or len(history.finished.get(0, ())) == history.samples
        ]
        return complete[-count:]

    def _end_period(self) -> None:
        self.period += 1
        sizes = Counter(history.period for history in self._prompts.values())
        oldest = self.period - 1
        while (
            oldest > self.period - WINDOW_PERIODS and sum(sizes[p] for p in sizes if p >= oldest - 1) <= WINDOW_PROMPTS
        ):
            oldest -= 1
        self._prompts = {prompt: history for prompt, history in self._prompts.items() if history.period >= oldest}

    def to_snapshot(self) -> dict[str, Any]:
        """Returns the history as plain JSON values."""
        return {
            "period": self.period,
            "rounds": _ROUNDS.dump_python(list(self._rounds.values()), mode="json"),
            "prompts": _PROMPTS.dump_python(list(self._prompts.values()), mode="json"),
        }

    @classmethod
    def from_snapshot(cls, snapshot: Mapping[str, Any]) -> LengthHistory:
        """Reads what `to_snapshot` returned. Raises KeyError if a part is missing, TypeError or ValueError if one is malformed."""
        history = cls()
        history.period = int(snapshot["period"])
        history._rounds = {opened.round: opened for opened in _ROUNDS.validate_python(snapshot["rounds"])}
        history._prompts = {prompt.prompt: prompt for prompt in _PROMPTS.validate_python(snapshot["prompts"])}
        return history
