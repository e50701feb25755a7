"""What was trained beside what audit rounds launched: lengths that nothing cut, of other prompts. Pure.

An audit round is a short round that doesn't race. Nothing of its lengths has to be estimated, which checks the estimate of
`length_bias`; but its prompts are others than those compared with them, so that intervals are wide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longboat_runtime.rounds.audit.completion import complete
from longboat_runtime.rounds.audit.first_launches import together
from longboat_runtime.rounds.audit.length_bias import MIN_PROMPTS
from longboat_runtime.rounds.audit.lengths import PromptLengths
from longboat_runtime.rounds.audit.paired_laws import Estimate
from longboat_runtime.rounds.audit.unpaired_laws import Law, ks_distance, mean_ratio


@dataclass(frozen=True, slots=True)
class AuditRounds:
    """How far the law of trained lengths is from that of audit rounds.

    `prompts` were launched in audit rounds, `trained` are those of other rounds in a step. `ks` is in [0, 1], `mean_ratio` is trained
    by launched; both are None where either side has fewer than MIN_PROMPTS.
    """

    prompts: int
    trained: int
    ks: Estimate | None
    mean_ratio: Estimate | None


def compare(audited: Sequence[PromptLengths], others: Sequence[PromptLengths], longest: int) -> AuditRounds:
    """Trained lengths of `others` with those of first launches in audit rounds (`audited`).

    `longest` is the limit on a response's tokens: where an engine was lost an audit round may have cut a response too.
    """
    trained = [prompt.trained for prompt in others if prompt.trained]
    ks = ratio = None
    if min(len(audited), len(trained)) >= MIN_PROMPTS:
        domains: dict[str, list[PromptLengths]] = {}
        for prompt in audited:
            domains.setdefault(prompt.domain, []).append(prompt)
        launched = Law.of_launches(together([complete(members, longest) for members in domains.values()]))
        data = Law.of_samples(trained)
        ks, ratio = ks_distance(data, launched), mean_ratio(data, launched)
    return AuditRounds(len(audited), len(trained), ks, ratio)
