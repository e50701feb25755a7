"""The audit of a window: what a round policy did to the lengths of the data, by domain and overall. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from longboat_runtime.rounds.audit.first_launches import FirstLaunches, complete, together
from longboat_runtime.rounds.audit.lengths import PromptLengths
from longboat_runtime.rounds.audit.paired import Estimate, PairedDistributions, ks_distance, mean_ratio

# With fewer prompts, or fewer trained prompts, than this, intervals don't have their nominal coverage.
MIN_PROMPTS = 40


@dataclass(frozen=True, slots=True)
class LengthBias:
    """Says how far the distribution of trained lengths is from that of first launches.

    `prompts` were drawn, and `trained` of them were in a step. `relaunched` is the share of prompts of which a response of a later attempt
    ended, `censored` the share of first-launch responses that were cut. `modelled` is the share of the first launches' distribution that no
    later attempt of the same prompt completes. `ks` is in [0, 1], `mean_ratio` is the trained mean divided by the launched mean; both are
    None if `prompts` or `trained` is below MIN_PROMPTS.
    """

    prompts: int
    trained: int
    relaunched: float
    censored: float
    modelled: float
    ks: Estimate | None
    mean_ratio: Estimate | None


@dataclass(frozen=True, slots=True)
class LengthAudit:
    """The bias over all prompts and in each domain."""

    overall: LengthBias
    domains: Mapping[str, LengthBias]


def audit(prompts: Sequence[PromptLengths], longest: int) -> LengthAudit:
    """Compares trained lengths with those of first launches, each drawn prompt once.

    All launches would be the wrong distribution: a deferred prompt is launched twice, which looks like the bias that it compensates.
    `prompts` are all prompts drawn in the window, in any order. The window should hold complete periods of short and long rounds: a
    prompt that still waits for its long round counts as never trained. `longest` is the limit on a response's length.

    The result depends only on the set of prompts, since the resamples are always the same. Raises ValueError if there is no prompt,
    or if a response is longer than `longest`.
    """
    if not prompts:
        raise ValueError("no prompts to audit")
    if max(prompt.longest for prompt in prompts) > longest:
        raise ValueError(f"a response is longer than the limit of {longest}")
    domains: dict[str, list[PromptLengths]] = {}
    for prompt in sorted(prompts, key=_canonical):
        domains.setdefault(prompt.domain, []).append(prompt)
    launched = {domain: complete(members, longest) for domain, members in domains.items()}
    each = {domain: _compare(members, launched[domain]) for domain, members in domains.items()}
    if len(each) == 1:
        return LengthAudit(next(iter(each.values())), each)
    everyone = [prompt for members in domains.values() for prompt in members]
    return LengthAudit(_compare(everyone, together([*launched.values()])), each)


def worst(audits: Mapping[str, LengthAudit], *, by_domain: bool) -> tuple[str, LengthBias]:
    """Returns the bias whose distance is certainly the largest, by the low end of its interval, and what it is of; the first of equal ones.

    `audits`, at least one, are by what they measure, such as `tokens`. With `by_domain` those of single domains count too, named
    `tokens of DOMAIN`.
    """
    each = [(measure, audit.overall) for measure, audit in audits.items()]
    if by_domain:
        each += [
            (f"{measure} of {domain}", bias)
            for measure, audit in audits.items()
            if len(audit.domains) > 1
            for domain, bias in audit.domains.items()
        ]
    return max(each, key=lambda item: -1.0 if item[1].ks is None else item[1].ks.low)


def _canonical(prompt: PromptLengths) -> tuple[object, ...]:
    sides = (prompt.finished, prompt.cut, prompt.later, prompt.trained)
    return (prompt.domain, *(sorted(lengths) for lengths in sides))


def _compare(prompts: Sequence[PromptLengths], launched: FirstLaunches) -> LengthBias:
    trained = sum(bool(prompt.trained) for prompt in prompts)
    ks = ratio = None
    if min(len(prompts), trained) >= MIN_PROMPTS:
        pair = PairedDistributions.from_prompts(prompts, launched)
        draws = pair.draws()
        ks, ratio = ks_distance(pair, draws), mean_ratio(pair, draws)
    return LengthBias(
        prompts=len(prompts),
        trained=trained,
        relaunched=float(np.mean([bool(prompt.later) for prompt in prompts])),
        censored=sum(len(prompt.cut) for prompt in prompts) / sum(prompt.launched for prompt in prompts),
        modelled=launched.modelled_share,
        ks=ks,
        mean_ratio=ratio,
    )
