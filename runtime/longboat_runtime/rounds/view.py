"""Shows round policies what they may see: a read-only view of the ledger. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.records import GivenUp, GroupRecord, RoundRecord, RoundState, SampleState, Waiting
from longboat_runtime.samples import PromptId, SampleId


class View:
    """A view of one ledger; always shows its current state."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.sample, self.awaits, self.streamed = ledger.sample, ledger.awaits, ledger.streamed

    @property
    def step(self) -> int:
        """The number of optimizer steps committed."""
        return self._ledger.step

    @property
    def steps(self) -> int:
        """The number of optimizer steps of the whole job, by its spec as of the last step boundary."""
        return self._ledger.steps

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
        """Whether a step is being computed."""
        return any(round_.state is RoundState.TRAINING for round_ in self._ledger.rounds.values())

    @property
    def last_round(self) -> int:
        return self._ledger.last_round

    @property
    def group_size(self) -> int:
        return self._ledger.group_size

    @property
    def drawn(self) -> int:
        """The number of prompts drawn from the source so far, over all epochs."""
        return self._ledger.drawn

    @property
    def queue(self) -> Mapping[PromptId, int]:
        """Prompts that wait for a launch, oldest first, with their next attempt."""
        return self._ledger.queue

    @property
    def deferred(self) -> Mapping[PromptId, GivenUp]:
        """Prompts of the queue that have been launched before, oldest first, with the attempt that was given up."""
        return self._ledger.deferred_prompts

    @property
    def queued_by_domain(self) -> Mapping[str, int]:
        """Number of prompts that wait for a launch, by domain."""
        return {domain: len(waiting.queue) for domain, waiting in self._ledger.waiting.items()}

    @property
    def short_rounds(self) -> int:
        """The number of short rounds opened so far, over the whole job."""
        return self._ledger.short_rounds

    @property
    def races(self) -> int:
        """The number of short rounds opened so far that race."""
        return self._ledger.races

    @property
    def calm_rounds(self) -> int:
        """The number of future short rounds that must not race."""
        return self._ledger.calm_rounds

    @property
    def rounds(self) -> Mapping[int, RoundRecord]:
        """Rounds that are open, or closed and not trained yet, by number, oldest first."""
        return self._ledger.rounds

    @property
    def lost(self) -> Collection[SampleId]:
        return self._ledger.lost.keys()

    @property
    def carried(self) -> Collection[PromptId]:
        """Prompts of the groups that wait for a round to continue in, oldest first."""
        return self._ledger.carried.keys()

    @property
    def counts(self) -> Mapping[SampleState, int]:
        """Samples of live groups by state."""
        return self._ledger.counts

    @property
    def groups(self) -> Mapping[PromptId, GroupRecord]:
        """The live (undecided or kept) groups by prompt, oldest launch first."""
        return self._ledger.groups

    def domain(self, prompt: PromptId) -> str:
        """Returns the domain from which a queued prompt, or one with a live group, was drawn; empty if from none, and for other prompts."""
        return self._ledger.domains.get(prompt, "")

    def within(self, domain: str) -> View:
        """Returns a view of the same ledger in which `queue` and `deferred` hold only the prompts of one domain."""
        return DomainView(self._ledger, domain)

    def open_rounds(self) -> Iterator[RoundRecord]:
        return (round_ for round_ in self._ledger.rounds.values() if round_.open)


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
    def deferred(self) -> Mapping[PromptId, GivenUp]:
        """Prompts of `queue` that have been launched before, oldest first, with the attempt that was given up."""
        return self._waiting.deferred
