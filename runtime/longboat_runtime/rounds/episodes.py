"""Folds from events what became of the episodes of each round: groups that were dropped, and how long slots were waited for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import DropReason
from longboat_runtime.rounds.records import RoundRecord
from longboat_runtime.samples import LossCause, PromptId, SampleId

# The job is degraded while more than this share of the newest groups is dropped because of environments.
MOST_FAILED = 0.05
# The newest rounds that launched this many groups together are judged: of fewer, one group would be much.
JUDGED_GROUPS = 100


@dataclass(slots=True)
class EpisodeRound:
    """The episodes of one round.

    `fates` has each prompt that was launched, with the reason if it was dropped. `waited_seconds` are those in which its episodes waited for
    slots, `seconds` those from their launches until they ended, the former included. `losses` counts episodes that environments or their
    pods lost.
    """

    fates: dict[PromptId, DropReason | None] = field(default_factory=dict)
    waited_seconds: float = 0.0
    seconds: float = 0.0
    losses: int = 0

    @property
    def waiting_share(self) -> float:
        """The share of its episodes' time in which they waited for slots; 0 without time."""
        return self.waited_seconds / self.seconds if self.seconds else 0.0


class EpisodeRounds:
    """Folds events in the order of their numbers. A round is handed over once, with its step (`trained`).

    Of a sample that a resumed driver launches again only that launch is known.
    """

    def __init__(self) -> None:
        self._rounds: dict[int, EpisodeRound] = {}
        self._round_of: dict[PromptId, int] = {}
        # When each sample that waits or is played was launched.
        self._launched: dict[SampleId, float] = {}

    def fold(self, entry: events.Entry) -> None:
        """Folds an entry of the log."""
        match body := entry.body:
            case events.RoundOpened(round=number):
                self._rounds[number] = EpisodeRound()
            case events.Launched(round=number, prompt=prompt, attempt=attempt, samples=samples):
                self._round_of[prompt] = number
                self._launched |= {SampleId(*prompt, attempt, index): entry.time for index in range(samples)}
                if round_ := self._rounds.get(number):
                    round_.fates[prompt] = None
            case events.Relaunched(sample=sample):
                self._launched[sample] = entry.time
            case events.EpisodeStarted(sample=sample, waited_seconds=seconds):
                if round_ := self._round(sample.prompt):
                    round_.waited_seconds += seconds
            case events.Lost(sample=sample, cause=cause):
                self._ended(sample, entry.time)
                if cause is LossCause.ENVIRONMENT and (round_ := self._round(sample.prompt)):
                    round_.losses += 1
            case events.Generated(sample=sample) | events.Stopped(sample=sample):
                self._ended(sample, entry.time)
            case events.GroupDropped(prompt=prompt, reason=reason):
                if (round_ := self._round(prompt)) and prompt in round_.fates:
                    round_.fates[prompt] = reason
            case events.StepCommitted(round=number, dropped=dropped):
                if dropped is not None and (round_ := self._rounds.get(number)):
                    batch = {sample.prompt for sample in body.samples}
                    round_.fates |= dict.fromkeys(batch & round_.fates.keys(), dropped)

    def trained(self, number: int) -> EpisodeRound:
        """Returns what became of a round that has been trained, and forgets it; an empty one if it was opened before the driver resumed."""
        round_ = self._rounds.pop(number, None) or EpisodeRound()
        ended = {prompt for prompt, its_round in self._round_of.items() if its_round <= number}
        for prompt in ended:
            del self._round_of[prompt]
        self._launched = {sample: time for sample, time in self._launched.items() if sample.prompt not in ended}
        return round_

    def _round(self, prompt: PromptId) -> EpisodeRound | None:
        return self._rounds.get(self._round_of.get(prompt, -1))

    def _ended(self, sample: SampleId, time: float) -> None:
        launched, round_ = self._launched.pop(sample, None), self._round(sample.prompt)
        if launched is not None and round_ is not None:
            round_.seconds += max(0.0, time - launched)


@dataclass(frozen=True, slots=True)
class FailedShare:
    """Of the newest `groups`, so many have `failed`: they were dropped because of their environments."""

    groups: int = 0
    failed: int = 0

    @property
    def too_many(self) -> bool:
        """Whether more than MOST_FAILED of them failed."""
        return self.failed > MOST_FAILED * self.groups


def newest(shares: Iterable[FailedShare]) -> list[FailedShare]:
    """Returns the last of `shares`, those of rounds, which have JUDGED_GROUPS groups together; all if there are fewer groups."""
    judged: list[FailedShare] = []
    for share in reversed([*shares]):
        judged.insert(0, share)
        if sum(each.groups for each in judged) >= JUDGED_GROUPS:
            break
    return judged


def together(shares: Sequence[FailedShare]) -> FailedShare:
    """Returns the share of all rounds together."""
    return FailedShare(sum(share.groups for share in shares), sum(share.failed for share in shares))


def failed_share(round_: EpisodeRound) -> FailedShare:
    """Returns the share of a round."""
    return FailedShare(len(round_.fates), [*round_.fates.values()].count(DropReason.ENVIRONMENT_ERROR))


def nothing_played(round_: RoundRecord) -> bool:
    """Whether all groups of a round that were decided in it were dropped because of their environments: nothing is left to train on."""
    failed = round_.dropped.get(DropReason.ENVIRONMENT_ERROR, 0)
    return failed > 0 and not round_.kept and failed == round_.launched - sum(round_.deferred.values())
