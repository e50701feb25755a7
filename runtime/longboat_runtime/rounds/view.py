"""What a round policy may see: the ledger, read-only. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

from longboat_runtime.rounds.events import DeferReason, DropReason, RoundKind
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.records import RoundState, State, Waiting
from longboat_runtime.samples import FinishReason, GradeKind, PromptId, SampleId, VersionSpan


class SampleView(Protocol):
    """See `records.SampleRecord`."""

    @property
    def index(self) -> int: ...
    @property
    def state(self) -> State: ...
    @property
    def seq(self) -> int | None: ...
    @property
    def counts(self) -> bool: ...
    @property
    def tokens(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def finish_reason(self) -> FinishReason | None: ...
    @property
    def spans(self) -> tuple[VersionSpan, ...]: ...
    @property
    def kind(self) -> GradeKind | None: ...
    @property
    def score(self) -> float: ...
    @property
    def parts(self) -> Mapping[str, float]: ...
    @property
    def grading_seconds(self) -> float: ...
    @property
    def begun(self) -> tuple[VersionSpan, ...]: ...
    @property
    def begun_tokens(self) -> int: ...
    @property
    def resumable(self) -> bool: ...
    @property
    def engine_deaths(self) -> int: ...


class GroupView(Protocol):
    """See `records.GroupRecord`."""

    @property
    def prompt(self) -> PromptId: ...
    @property
    def attempt(self) -> int: ...
    @property
    def round(self) -> int: ...
    @property
    def state(self) -> State: ...
    @property
    def samples(self) -> Sequence[SampleView]: ...
    @property
    def counted(self) -> Sequence[int]: ...
    @property
    def counted_ids(self) -> Sequence[SampleId]: ...
    @property
    def sample_ids(self) -> Sequence[SampleId]: ...
    @property
    def completed(self) -> int | None: ...
    @property
    def errors(self) -> int: ...
    @property
    def rewarded(self) -> bool: ...
    @property
    def scores(self) -> Sequence[float]: ...
    @property
    def zero_variance(self) -> bool: ...


class GivenUpView(Protocol):
    """See `records.GivenUp`."""

    @property
    def round(self) -> int: ...
    @property
    def longest(self) -> int: ...


class PartView(Protocol):
    """See `records.PartRecord`."""

    @property
    def number(self) -> int: ...
    @property
    def kind(self) -> RoundKind: ...
    @property
    def racing(self) -> bool: ...
    @property
    def groups(self) -> Collection[PromptId]: ...
    @property
    def completed(self) -> Collection[PromptId]: ...
    @property
    def kept(self) -> Collection[PromptId]: ...
    @property
    def undecided(self) -> int: ...
    @property
    def launched(self) -> int: ...
    @property
    def dropped(self) -> Mapping[DropReason, int]: ...
    @property
    def deferred(self) -> Mapping[DeferReason, int]: ...


class RoundView(PartView, Protocol):
    """See `records.RoundRecord`."""

    @property
    def version(self) -> int: ...
    @property
    def state(self) -> RoundState: ...
    @property
    def trainable(self) -> bool: ...
    @property
    def adopted(self) -> int: ...
    @property
    def carried(self) -> int: ...
    @property
    def generated(self) -> int: ...
    @property
    def surplus(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def generated_tokens(self) -> int: ...
    @property
    def stopped_tokens(self) -> int: ...
    @property
    def grades(self) -> Mapping[GradeKind, int]: ...
    def part(self, domain: str) -> PartView: ...
    @property
    def parts(self) -> Mapping[str, PartView]: ...


class View:
    """A window onto one ledger; always shows its present state."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @property
    def step(self) -> int:
        """Optimizer steps committed."""
        return self._ledger.step

    @property
    def serving(self) -> int | None:
        """The weight version that serves; None between a driver's start and its first publication."""
        return self._ledger.serving

    @property
    def publishing(self) -> int | None:
        """The weight version that engines are being given."""
        return self._ledger.publishing

    @property
    def training(self) -> bool:
        """A step is being computed."""
        return any(round_.state is RoundState.TRAINING for round_ in self._ledger.rounds.values())

    @property
    def last_round(self) -> int:
        return self._ledger.last_round

    @property
    def group_size(self) -> int:
        return self._ledger.group_size

    @property
    def drawn(self) -> int:
        """Prompts taken from the source so far, over all epochs."""
        return self._ledger.drawn

    @property
    def queue(self) -> Mapping[PromptId, int]:
        """Prompts that wait for a launch, oldest first, with their next attempt."""
        return self._ledger.queue

    @property
    def deferred(self) -> Mapping[PromptId, GivenUpView]:
        """Prompts of the queue that have been launched before, oldest first, with the attempt that was given up."""
        return self._ledger.deferred_prompts

    @property
    def queued_of_domains(self) -> Mapping[str, int]:
        """How many prompts wait for a launch, by domain."""
        return {domain: len(waiting.queue) for domain, waiting in self._ledger.waiting.items()}

    @property
    def short_rounds(self) -> int:
        """Short rounds opened so far, of the whole job."""
        return self._ledger.short_rounds

    @property
    def races(self) -> int:
        """Those of them that race."""
        return self._ledger.races

    @property
    def calm_rounds(self) -> int:
        """So many short rounds to come must not race."""
        return self._ledger.calm_rounds

    @property
    def overcommit(self) -> float | None:
        """The factor of prompts that was chosen last while the job ran; None before."""
        return self._ledger.overcommit

    @property
    def overcommit_since(self) -> int:
        """Races opened before that."""
        return self._ledger.overcommit_since

    @property
    def rounds(self) -> Mapping[int, RoundView]:
        """Rounds that are open, or closed and not trained, by number, oldest first."""
        return self._ledger.rounds

    @property
    def lost(self) -> Collection[SampleId]:
        return self._ledger.lost.keys()

    @property
    def carried(self) -> Collection[PromptId]:
        """Groups that wait for a round to go on in, oldest first."""
        return self._ledger.carried.keys()

    @property
    def counts(self) -> Mapping[State, int]:
        """Samples of live groups by state."""
        return self._ledger.counts

    @property
    def groups(self) -> Collection[PromptId]:
        """Prompts with a live (undecided or kept) group, oldest launch first."""
        return self._ledger.groups.keys()

    def group(self, prompt: PromptId) -> GroupView | None:
        """The live (undecided or kept) group of a prompt."""
        return self._ledger.groups.get(prompt)

    def sample(self, sample: SampleId) -> SampleView | None:
        """A sample of a live group; None if its attempt is over."""
        return self._ledger.sample(sample)

    def awaits(self, sample: SampleId) -> bool:
        """An engine was told to stop this sample, and hasn't given it back."""
        return self._ledger.awaits(sample)

    def domain(self, prompt: PromptId) -> str:
        """The domain that a queued prompt or one with a live group was drawn from; empty if from none."""
        return self._ledger.domains.get(prompt, "")

    def within(self, domain: str) -> View:
        """The same, but for what waits: `queue` and `deferred` are those of one domain."""
        return DomainView(self._ledger, domain)

    def open_rounds(self) -> Iterator[RoundView]:
        return (round_ for round_ in self._ledger.rounds.values() if round_.state is RoundState.OPEN)


class DomainView(View):
    """See `View.within`."""

    def __init__(self, ledger: Ledger, domain: str) -> None:
        super().__init__(ledger)
        self._waiting = ledger.waiting.get(domain, Waiting())

    @property
    def queue(self) -> Mapping[PromptId, int]:
        """Prompts of the domain that wait for a launch, oldest first, with their next attempt."""
        return self._waiting.queue

    @property
    def deferred(self) -> Mapping[PromptId, GivenUpView]:
        """Those of them that have been launched before, oldest first, with the attempt that was given up."""
        return self._waiting.deferred
