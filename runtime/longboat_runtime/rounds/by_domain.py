"""Quotas: every round trains a fixed number of prompts of each domain. Strictly on-policy. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from longboat_runtime.rounds import events
from longboat_runtime.rounds.on_policy import OneQuota, OnPolicy
from longboat_runtime.rounds.policy import Decision, Launch
from longboat_runtime.rounds.records import RoundRecord
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.rounds.rules import next_round, reached
from longboat_runtime.rounds.view import View

# Events of one sample concern its own domain alone.
_OF_A_SAMPLE = (events.Generated, events.Graded, events.Lost, events.Stopped)


@dataclass(frozen=True, slots=True)
class ByDomain(OnPolicy):
    """Applies to each domain the rule for its own quota, by name: domains launch, race, defer and replace prompts independently.

    A round ends once every domain has its quota, and is long once every domain can fill its part of it with deferred prompts. A
    domain whose queue can't wait for that (it exceeds two quotas, or the remaining rounds couldn't take it) gets a long round at
    once, in which the missing places of other domains go to fresh prompts. So no domain waits forever for another, and quotas hold
    in rounds of both kinds.
    """

    rules: Mapping[str, OneQuota]

    def upcoming(self, view: View) -> events.RoundOpened:
        """Returns the event that opens the next round."""
        each = [(rule, view.within(domain)) for domain, rule in self.rules.items()]
        if all(rule.due(part) for rule, part in each) or any(rule.urgent(part) for rule, part in each):
            return next_round(view, RoundKind.LONG)
        return next_round(view, racing=any(rule.racing(part) for rule, part in each))

    def answer(self, view: View, round_: RoundRecord, body: events.Body) -> Decision | None:
        answers = (
            self.rules[domain].answer(view.within(domain), round_.part(domain), body)
            for domain in self._affected_domains(view, body)
        )
        return next((answer for answer in answers if answer), None)

    def settle(self, view: View, round_: RoundRecord, body: events.Body) -> Sequence[Decision]:
        if decisions := self._decisions(view, round_, body, self._affected_domains(view, body)):
            return decisions
        if round_.undecided:
            return []
        return self._decisions(view, round_, body, self.rules) or [events.RoundClosed(round_.number)]

    def _affected_domains(self, view: View, body: events.Body) -> Iterable[str]:
        """Returns the domains whose part of the round the event may have changed: its sample's; all without a sample of a known domain."""
        domain = view.domain(body.sample.prompt) if isinstance(body, _OF_A_SAMPLE) else ""
        return (domain,) if domain else self.rules

    def _decisions(self, view: View, round_: RoundRecord, body: events.Body, domains: Iterable[str]) -> list[Decision]:
        """Returns all decisions of these domains except the end of the round."""
        decisions: list[Decision] = [
            replace(decision, domain=domain) if isinstance(decision, Launch) else decision
            for domain in domains
            for decision in self.rules[domain].settle(view.within(domain), round_.part(domain), body)
            if not isinstance(decision, events.RoundClosed)
        ]
        return _longest_first(view, decisions) if round_.kind is RoundKind.LONG else decisions


def _longest_first(view: View, decisions: Sequence[Decision]) -> list[Decision]:
    """Splits launches by queued prompt, in one order for all domains: longest abandoned attempt first. Fresh prompts and others follow."""
    launches = [decision for decision in decisions if isinstance(decision, Launch)]
    queued = [replace(launch, queued=(prompt,), fresh=0) for launch in launches for prompt in launch.queued]
    fresh = [replace(launch, queued=()) for launch in launches if launch.fresh]
    others = [decision for decision in decisions if not isinstance(decision, Launch)]
    prompts = [launch.queued[0] for launch in queued]
    furthest = reached([view.deferred[prompt] for prompt in prompts if prompt in view.deferred])
    return [*sorted(queued, key=lambda launch: -furthest.get(launch.queued[0], 0.0)), *fresh, *others]
