"""Folds from events what each round asked of its engines. Pure."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from longboat_runtime.rounds import events
from longboat_runtime.rounds.measurements import Responses, RoundWork
from longboat_runtime.samples import PromptId, SampleId

# More lengths than this are given as quantiles.
QUANTILES = 128


@dataclass(slots=True)
class _OpenRound:
    opened: float
    last: float = 0.0
    requested: set[SampleId] = field(default_factory=set)
    ended: dict[SampleId, int] = field(default_factory=dict)
    stopped: dict[SampleId, int] = field(default_factory=dict)
    left_out: set[PromptId] = field(default_factory=set)
    prompt_tokens: dict[PromptId, int] = field(default_factory=dict)


class RoundWorks:
    """Folds events in the order of their numbers; a round is forgotten with its step.

    Of a response that is continued after a pause that was folded, each round has the tokens drawn in it.
    """

    def __init__(self) -> None:
        self._rounds: dict[int, _OpenRound] = {}
        self._round_of: dict[tuple[PromptId, int], _OpenRound] = {}
        self._begun: dict[SampleId, int] = {}

    def fold(self, entry: events.Entry) -> None:
        """Folds an entry of the log."""
        match body := entry.body:
            case events.RoundOpened(round=number):
                self._rounds[number] = _OpenRound(entry.time)
            case (
                events.Launched(round=number, prompt=prompt, attempt=attempt)
                | events.GroupAdopted(round=number, prompt=prompt, attempt=attempt)
            ):
                round_ = self._rounds.get(number)
                if round_ is None:  # it was opened before the driver resumed
                    self._round_of.pop((prompt, attempt), None)
                    return
                self._round_of[prompt, attempt] = round_
                if isinstance(body, events.Launched):
                    round_.requested.update(SampleId(*prompt, attempt, index) for index in range(body.samples))
            case events.Resumed(samples=samples):
                for sample in samples:
                    if round_ := self._round_of.get((sample.prompt, sample.attempt)):
                        round_.requested.add(sample)
            case events.Generated(sample=sample) | events.Stopped(sample=sample) | events.Paused(sample=sample):
                if round_ := self._round_of.get((sample.prompt, sample.attempt)):
                    ended = isinstance(body, events.Generated) or (isinstance(body, events.Stopped) and body.finished)
                    tokens = body.tokens - self._begun.pop(sample, 0)
                    (round_.ended if ended else round_.stopped)[sample] = tokens
                    round_.last = max(round_.last, entry.time)
                    if isinstance(body, events.Generated):
                        round_.prompt_tokens[sample.prompt] = body.prompt_tokens
                if isinstance(body, events.Paused):
                    self._begun[sample] = body.tokens
            case (
                events.GroupDeferred(prompt=prompt, attempt=attempt)
                | events.GroupCarried(prompt=prompt, attempt=attempt)
            ):
                if round_ := self._round_of.get((prompt, attempt)):
                    round_.left_out.add(prompt)
            case events.StepCommitted(round=number):
                self._forget(number)

    def for_round(self, number: int) -> RoundWork | None:
        """Returns what the round asked for; None if no response has ended.

        What was stopped and isn't back yet ran as long as any.
        """
        round_ = self._rounds.get(number)
        if round_ is None or not round_.ended:
            return None
        longest = max([*round_.ended.values(), *round_.stopped.values()])
        tokens = round_.prompt_tokens.values()
        return RoundWork(
            max(0.0, round_.last - round_.opened), sum(tokens) / max(1, len(tokens)), _responses(round_, longest)
        )

    def outstanding(self, number: int) -> Set[SampleId]:
        """Returns the responses that the round asked for and that have neither ended nor come back; none if the round isn't known."""
        round_ = self._rounds.get(number)
        return round_.requested - round_.ended.keys() - round_.stopped.keys() if round_ else set()

    def _forget(self, number: int) -> None:
        if round_ := self._rounds.pop(number, None):
            self._round_of = {
                group: open_round for group, open_round in self._round_of.items() if open_round is not round_
            }
            for sample in round_.requested - round_.stopped.keys():
                self._begun.pop(sample, None)


def _responses(round_: _OpenRound, longest: int) -> Responses:
    others = round_.requested - round_.ended.keys()
    # What was stopped because its group had enough asked for no more than it got.
    spared = [round_.stopped.get(sample, longest) for sample in others if sample.prompt not in round_.left_out]
    stopped = sorted(round_.stopped.get(sample, longest) for sample in others if sample.prompt in round_.left_out)
    ended = sorted([*round_.ended.values(), *spared])
    return Responses(len(round_.requested), len(ended), _quantiles(ended), _quantiles(stopped))


def _quantiles(ascending: list[int]) -> tuple[int, ...]:
    """Returns all values, or QUANTILES of them at even shares if there are more; the longest is among them, as a round waits for it."""
    count = len(ascending)
    if count <= QUANTILES:
        return tuple(ascending)
    inner = (ascending[int((number + 0.5) * count / QUANTILES)] for number in range(QUANTILES - 1))
    return (*inner, ascending[-1])
