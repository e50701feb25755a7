"""Once a period of short and long rounds: whether what was trained has the lengths of what was launched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from longboat_crds.reasons import Reason
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.reporter import Reporter
from longboat_runtime.interfaces import PromptSource
from longboat_runtime.metrics.lengths import audit_rounds_metrics, length_line, length_metrics
from longboat_runtime.rounds import events
from longboat_runtime.rounds.audit.audit_rounds import compare
from longboat_runtime.rounds.audit.history import LengthHistory, PromptHistory
from longboat_runtime.rounds.audit.length_bias import LengthBias, audit
from longboat_runtime.rounds.audit.lengths import PromptLengths
from longboat_runtime.rounds.policies import races_of_a_period

log = structlog.get_logger()


class Audits:
    """Looks at `lengths` once it holds one period more. What it finds goes into metrics and status; `happened` hears what follows."""

    def __init__(
        self, job: Job, source: PromptSource, reporter: Reporter, happened: Callable[[events.Body], None]
    ) -> None:
        self._spec, self._longest = job.spec, job.sampling.max_tokens
        self._source, self._reporter, self._happened = source, reporter, happened

    def go_on(self, lengths: LengthHistory) -> None:
        """Where the driver begins: what it has of earlier periods was audited before."""
        self._lengths, self._audited = lengths, lengths.period

    async def run(self, step: int) -> None:
        """Adds to the record of `step`, if that ended a period."""
        if self._lengths.period == self._audited:
            return
        self._audited = self._lengths.period
        window = self._lengths.window()
        if not window:
            return
        raced, audited = self._lengths_of(window, audited=False), self._lengths_of(window, audited=True)
        found = await asyncio.to_thread(audit, [*raced, *audited], self._longest)
        self._reporter.reports.add(step, length_metrics(found))
        self._reporter.audited(
            length_line(found.overall), {name: length_line(of) for name, of in found.domains.items()}
        )
        if audited:
            beside = await asyncio.to_thread(compare, audited, raced, self._longest)
            self._reporter.reports.add(step, audit_rounds_metrics(beside))
            self._reporter.compared(length_line(beside))
        self._limit(found.overall)

    def _lengths_of(self, window: Sequence[PromptHistory], *, audited: bool) -> list[PromptLengths]:
        """Of prompts that were first launched in audit rounds, or in others."""
        return [one.lengths(self._source.domain(one.prompt.row)) for one in window if one.audited == audited]

    def _limit(self, bias: LengthBias) -> None:
        """Suspends racing for a period once the bias is more than allowed, beyond doubt."""
        limit = self._spec.rounds.max_length_bias
        exceeded = limit is not None and bias.ks is not None and bias.ks.low > limit
        message = (
            f"Trained responses differ from those first launched: {length_line(bias)}; rounds don't race for a period."
        )
        self._reporter.problems.set(Reason.LENGTH_BIAS, "spec.rounds.maxLengthBias", message, exceeded)
        if exceeded:
            log.warning("races are suspended", bias=length_line(bias), limit=limit)
            self._happened(events.RacesSuspended(races_of_a_period(self._spec)))
