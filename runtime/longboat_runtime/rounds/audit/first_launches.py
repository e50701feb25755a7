"""The distribution of the lengths of first launches, in which responses that were cut are completed. Pure.

A response cut at c tokens would have continued. Later attempts of the same prompt are draws from the same distribution, so each
attempt longer than c is equally likely to show its end. If there is none, the end is modelled, with three answers:

Likely: the response ends as the domain's responses end beyond the same multiple of their prompt's level, which is its median.
Responses to one prompt have similar lengths (Seer, arXiv:2511.14617), so a length is modelled as prompt effect x sample effect, and
the distribution of the sample effect is shared. By lengths alone, cut responses of ordinary prompts would become as long as those of
the longest prompts; only a prompt of which more than half was cut, and which therefore has no level, is completed that way. Cut
responses count in both distributions (product limit).

Near: the shorter of the likely end and that of an exponential distribution: the response ends at the rate at which its prompt's
responses ended between level and cut. If none did, it ends at the cut. In a long tail the rate falls, so the true end would be later. This
restrains the likely answer when the sample effects of some prompts are wider than those of others: it uses the widest for all, since they
are seen the farthest.

Far: like likely, but the part beyond the longest response seen ends at the longest possible response.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from longboat_runtime.rounds.audit.lengths import PromptLengths
from longboat_runtime.rounds.audit.survival import Bools, Floats, Survival, exponential, median, product_limit


@dataclass(frozen=True, slots=True)
class FirstLaunches:
    """Atoms [n] of the distribution: the numbers of their `prompts` and their `masses`, which add up to 1 for each prompt.

    An atom is at `near` tokens at least, at `far` tokens at most and probably at `likely` tokens. The three differ only if the atom
    is `modelled`: no later attempt of the same prompt shows where it ends.
    """

    prompts: npt.NDArray[np.intp]
    near: Floats
    likely: Floats
    far: Floats
    masses: Floats
    modelled: Bools

    @property
    def modelled_share(self) -> float:
        return float(self.masses[self.modelled].sum() / self.masses.sum())


def join(parts: Sequence[FirstLaunches]) -> FirstLaunches:
    """Joins all atoms of `parts`, which share the numbers of their prompts, except atoms without mass."""
    columns = zip(*((_.prompts, _.near, _.likely, _.far, _.masses, _.modelled) for _ in parts), strict=True)
    joined = [np.concatenate(column) for column in columns]
    has_mass = joined[4] > 0
    return FirstLaunches(*(column[has_mass] for column in joined))


def together(distributions: Sequence[FirstLaunches]) -> FirstLaunches:
    """Makes one distribution over the prompts of all `distributions`, renumbered consecutively."""
    first = np.cumsum([0, *(distribution.prompts.max() + 1 for distribution in distributions)])
    return join(
        [
            replace(distribution, prompts=distribution.prompts + offset)
            for distribution, offset in zip(distributions, first, strict=False)
        ]
    )


def complete(prompts: Sequence[PromptLengths], longest: int) -> FirstLaunches:
    """Makes the distribution of the first launches of `prompts`, all of one domain, numbered in this order: cut responses are completed.

    No response has more than `longest` tokens.
    """
    rows: list[tuple[float, float, float]] = []
    unknown: list[Cut] = []
    for number, prompt in enumerate(prompts):
        each = 1 / prompt.launched
        rows += [(number, length, each) for length in prompt.finished]
        for tokens, responses in Counter(prompt.cut).items():
            longer = [length for length in prompt.later if length > tokens]
            rows += [(number, length, responses * each / len(longer)) for length in longer]
            if not longer:
                unknown.append(Cut(number, tokens, responses * each))
    numbers, lengths, masses = np.array(rows, dtype=np.float64).reshape(-1, 3).T
    modelled = np.zeros(len(rows), dtype=np.bool_)
    observed = FirstLaunches(numbers.astype(np.intp), lengths, lengths, lengths, masses, modelled)
    return join([observed, *tails(prompts, unknown, longest)])


class Cut(NamedTuple):
    """The part `mass` of the prompt numbered `prompt` that was cut at `tokens`."""

    prompt: int
    tokens: int
    mass: float


def tails(prompts: Sequence[PromptLengths], cuts: Sequence[Cut], longest: int) -> list[FirstLaunches]:
    """Models the ends of `cuts`, in at most two parts. `prompts` are all prompts of the domain; no response exceeds `longest` tokens."""
    if not cuts:
        return []
    levels = np.array([median((*prompt.finished, *prompt.later), prompt.cut) for prompt in prompts])
    with_level = np.flatnonzero(~np.isnan(levels))
    scaled = [cut for cut in cuts if not np.isnan(levels[cut.prompt])]
    others = [cut for cut in cuts if np.isnan(levels[cut.prompt])]
    ends = []
    if scaled:
        shared = _distribution([prompts[number] for number in with_level], levels[with_level])
        rests = np.array([_mean_rest(prompts[cut.prompt], levels[cut.prompt], cut.tokens) for cut in scaled])
        ends.append(_tail(scaled, shared, levels, rests, longest))
    if others:
        unit = np.ones(len(prompts))
        ends.append(_tail(others, _distribution(prompts, unit), unit, np.zeros(len(others)), longest))
    return ends


def _distribution(prompts: Sequence[PromptLengths], levels: Floats) -> Survival:
    """Estimates the distribution of all responses to `prompts`, as multiples of their prompt's level [prompts]."""
    lengths = [np.array((*prompt.finished, *prompt.later, *prompt.cut)) for prompt in prompts]
    ended = [np.arange(len(all_)) < len(all_) - len(prompt.cut) for all_, prompt in zip(lengths, prompts, strict=True)]
    shares = [all_ / level for all_, level in zip(lengths, levels, strict=True)]
    return product_limit(np.concatenate(shares), np.concatenate(ended))


def _mean_rest(prompt: PromptLengths, level: float, tokens: int) -> float:
    """Estimates the mean tokens still to come at a constant rate: all tokens between `level` and `tokens`, per response that ended there.

    0 if no response ended there.
    """
    lengths = np.array((*prompt.finished, *prompt.later, *prompt.cut))
    ended = np.array((*prompt.finished, *prompt.later))
    ends = np.count_nonzero((ended > level) & (ended <= tokens))
    return float((np.clip(lengths, level, max(tokens, level)) - level).sum() / ends) if ends else 0.0


def _tail(cuts: Sequence[Cut], distribution: Survival, levels: Floats, rests: Floats, longest: int) -> FirstLaunches:
    """Models the ends of `cuts` [c] by `distribution` in multiples of `levels`, and by exponential distributions with means `rests` [c]."""
    numbers = np.array([cut.prompt for cut in cuts])
    tokens = np.array([[cut.tokens] for cut in cuts], dtype=np.float64)
    level = levels[numbers][:, None]
    places, shares = distribution.beyond(tokens / level)
    likely = np.clip(places * level, tokens, longest)
    near = np.minimum(tokens + rests[:, None] * exponential(shares), likely)
    far = likely.copy()
    far[:, -1] = longest
    masses = np.array([[cut.mass] for cut in cuts]) * shares
    return FirstLaunches(
        prompts=np.repeat(numbers, shares.shape[1]),
        near=near.ravel(),
        likely=likely.ravel(),
        far=far.ravel(),
        masses=masses.ravel(),
        modelled=np.ones(shares.size, dtype=np.bool_),
    )
