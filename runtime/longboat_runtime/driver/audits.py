"""Compares, once per period of short and long rounds, the lengths of trained responses with those launched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from longboat_crds.reasons import Reason
from longboat_runtime.data.protocol import PromptSource
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.reporter import Reporter
from longboat_runtime.metrics.lengths import audit_rounds_metrics, length_line, length_metrics
from longboat_runtime.rounds import events
from longboat_runtime.rounds.audit.audit_rounds import compare
from longboat_runtime.rounds.audit.history import LengthHistory, PromptHistory
from longboat_runtime.rounds.audit.length_bias import LengthBias, audit
from longboat_runtime.rounds.audit.lengths import PromptLengths
from longboat_runtime.rounds.policies import races_per_period

log = structlog.get_logger()


class Audits:
    """Audits the length history each time a period ends.

    Findings go into metrics and status; `happened` gets the event if races have to be suspended.
    """

    def __init__(
        self, job: Job, source: PromptSource, reporter: Reporter, happened: Callable[[events.Body], None]
    ) -> None:
        self._spec, self._longest = job.spec, job.sampling.max_tokens
        self._source, self._reporter, self._happened = source, reporter, happened

    def resume(self, lengths: LengthHistory) -> None:
        """Starts from this history; the periods that have ended in it aren't audited again."""
        self._lengths, self._audited = lengths, lengths.period

    async def run(self, step: int) -> None:
        """Adds the audit to the record of `step` if that step ended a period."""
        if self._lengths.period == self._audited:
            return
        self._audited = self._lengths.period
        window = self._lengths.window()
        if not window:
            return
        raced, audited = self._lengths_of(window, audited=False), self._lengths_of(window, audited=True)
        result = await asyncio.to_thread(audit, [*raced, *audited], self._longest)
        self._reporter.reports.add(step, length_metrics(result))
        self._reporter.audited(
            length_line(result.overall), {name: length_line(bias) for name, bias in result.domains.items()}
        )
        if audited:
            comparison = await asyncio.to_thread(compare, audited, raced, self._longest)
            self._reporter.reports.add(step, audit_rounds_metrics(comparison))
            self._reporter.compared(length_line(comparison))
        self._limit(result.overall)

    def _lengths_of(self, window: Sequence[PromptHistory], *, audited: bool) -> list[PromptLengths]:
        """Returns the lengths of those prompts of the window that were first launched in audit rounds (`audited`), or in other rounds."""
        return [
            history.lengths(self._source.domain(history.prompt.row)) for history in window if history.audited == audited
        ]

    def _limit(self, bias: LengthBias) -> None:
        """Suspends racing for a period if the bias certainly exceeds the limit: the low end of its interval does."""
        limit = self._spec.rounds.max_length_bias
        exceeded = limit is not None and bias.ks is not None and bias.ks.low > limit
        message = (
            f"Trained responses differ from those first launched: {length_line(bias)}; rounds don't race for a period."
        )
        self._reporter.problems.set(Reason.LENGTH_BIAS, "spec.rounds.maxLengthBias", message, exceeded)
        if exceeded:
            log.warning("races are suspended", bias=length_line(bias), limit=limit)
            self._happened(events.RacesSuspended(races_per_period(self._spec)))
