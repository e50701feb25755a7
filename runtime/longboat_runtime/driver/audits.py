"""Compares, once per period of short and long rounds, the lengths of trained responses with those launched.

With environments the seconds in them are compared as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import structlog

from longboat_crds.reasons import Reason
from longboat_crds.status import DomainTraining
from longboat_runtime.driver.context import Context
from longboat_runtime.driver.observer import Observer
from longboat_runtime.driver.resume import Restored
from longboat_runtime.metrics.lengths import audit_rounds_metrics, length_line, length_metrics
from longboat_runtime.rounds import events
from longboat_runtime.rounds.audit.audit_rounds import compare
from longboat_runtime.rounds.audit.history import PromptHistory
from longboat_runtime.rounds.audit.length_bias import LengthBias, audit, worst
from longboat_runtime.rounds.audit.lengths import PromptLengths
from longboat_runtime.rounds.policies import races_per_period
from longboat_runtime.rounds.view import View
from longboat_runtime.status_fragment import Problems, StatusFragment

log = structlog.get_logger()

# What is audited.
_TOKENS, _SECONDS = "tokens", "seconds in the environment"


class Audits(Observer):
    """Audits the length history each time a period ends, and has races suspended if trained responses are too short or too long."""

    def __init__(self, context: Context) -> None:
        self._spec, self._longest = context.job.spec, context.job.sampling.max_tokens
        self._source, self._inbox = context.components.source, context.inbox
        self._problems = Problems(context.news)
        self._view: View | None = None
        self._length_bias: str | None = None
        self._audit_rounds: str | None = None
        before = context.broker.previous.training
        domains = (before and before.domains) or ()
        self._domain_bias = {training.domain: training.length_bias for training in domains if training.length_bias}

    def resume(self, restored: Restored) -> None:
        """Starts from the restored history; the periods that have ended in it aren't audited again."""
        self._view, self._lengths = restored.run_state.view, restored.run_state.lengths
        self._audited = self._lengths.period

    async def metrics(self, step: int) -> Mapping[str, float]:
        """Returns the audit of the period that the step ended, if it did, and puts it into the status."""
        if self._lengths.period == self._audited:
            return {}
        self._audited = self._lengths.period
        window = self._lengths.window()
        if not window:
            return {}
        raced, audited = self._lengths_of(window, audited=False), self._lengths_of(window, audited=True)
        times = self._milliseconds_of(window) if self._spec.environments else []
        result = await asyncio.to_thread(audit, [*raced, *audited], self._longest)
        audits = {_TOKENS: result}
        metrics = length_metrics(result)
        if times:
            audits[_SECONDS] = seconds = await asyncio.to_thread(audit, times, self._longest_time(times))
            metrics |= length_metrics(seconds, "tail/seconds_bias")
        self._length_bias = _line(worst(audits, by_domain=False))
        self._domain_bias = {name: length_line(bias) for name, bias in result.domains.items()}
        if audited:
            comparison = await asyncio.to_thread(compare, audited, raced, self._longest)
            metrics |= audit_rounds_metrics(comparison)
            self._audit_rounds = length_line(comparison)
        self._limit(worst(audits, by_domain=bool(self._spec.environments)))
        return metrics

    def status(self) -> StatusFragment:
        """Returns the last audit, over all prompts and for each domain with a quota, in their order, with what waits there.

        Before there is a view, domains are as an earlier start left them.
        """
        training = {"length_bias": self._length_bias, "audit_rounds": self._audit_rounds}
        if self._view is None:
            return StatusFragment(training)
        waiting = self._view.queued_by_domain
        domains = [
            DomainTraining(domain=name, waiting=waiting.get(name, 0), length_bias=self._domain_bias.get(name))
            for name in (quota.domain for quota in self._spec.rounds.quotas or ())
        ]
        return StatusFragment({**training, "domains": domains or None}, problems=self._problems.present)

    def _lengths_of(self, window: Sequence[PromptHistory], *, audited: bool) -> list[PromptLengths]:
        """Returns the lengths of those prompts of the window that were first launched in audit rounds (`audited`), or in other rounds."""
        return [
            history.lengths(self._source.domain(history.prompt.row)) for history in window if history.audited == audited
        ]

    def _milliseconds_of(self, window: Sequence[PromptHistory]) -> list[PromptLengths]:
        """Returns how long the episodes of a window were in their environments."""
        return [history.milliseconds(self._source.domain(history.prompt.row)) for history in window]

    def _longest_time(self, times: Sequence[PromptLengths]) -> int:
        """Returns how many milliseconds an episode may be in its environment, or was."""
        deadlines = [1000 * environment.limits.deadline_seconds for environment in self._spec.environments or ()]
        return max(*deadlines, *(each.longest for each in times))

    def _limit(self, judged: tuple[str, LengthBias]) -> None:
        """Suspends racing for a period if the bias certainly exceeds the limit: the low end of its interval does.

        With environments that is the worst of tokens and seconds, over all prompts and in each domain.
        """
        _, bias = judged
        limit = self._spec.rounds.max_length_bias
        exceeded = limit is not None and bias.ks is not None and bias.ks.low > limit
        message = (
            f"Trained responses differ from those first launched: {_line(judged)}; rounds don't race for a period."
        )
        self._problems.set(Reason.LENGTH_BIAS, "spec.rounds.maxLengthBias", message, exceeded)
        if exceeded:
            log.warning("races are suspended", bias=_line(judged), limit=limit)
            self._inbox.put_nowait(events.RacesSuspended(races_per_period(self._spec)))


def _line(judged: tuple[str, LengthBias]) -> str:
    """Returns the line of a bias, with what it is of unless that is the tokens of all prompts (pure)."""
    name, bias = judged
    return length_line(bias) if name == _TOKENS else f"{name}: {length_line(bias)}"
