"""Where cut responses end that no later attempt of their prompt outlasts: three answers, likely, near and far. Pure.

Likely: as the domain's responses do beyond the same multiple of their prompt's level, which is its median. Responses to one prompt
have similar lengths (Seer, arXiv:2511.14617), so a length is modelled as prompt effect x sample effect, and the law of the sample
effect is shared. By their lengths alone, responses cut in ordinary prompts would become as long as those of the longest; only a
prompt more than half of which was cut, which has no level, is completed so. What was cut counts in both laws (product limit).

Near: the shorter of that and of an exponential law: the response ends at the rate at which its prompt's responses ended between
level and cut. With a long tail the rate falls, so it would go on longer. This holds back the likely answer where sample effects of
some prompts are wider than those of others: it takes the widest for everybody's, as they are seen the farthest.

Far: as likely, but what is beyond the longest response seen ends at the longest possible one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from longboat_runtime.rounds.audit.first_launches import FirstLaunches
from longboat_runtime.rounds.audit.lengths import PromptLengths
from longboat_runtime.rounds.audit.survival import Floats, Survival, exponential, median, product_limit


class Cut(NamedTuple):
    """`mass` of the prompt numbered `prompt`, cut at `tokens`."""

    prompt: int
    tokens: int
    mass: float


def tails(prompts: Sequence[PromptLengths], cuts: Sequence[Cut], longest: int) -> list[FirstLaunches]:
    """The ends of `cuts`. `prompts` are all of the domain; no response has more than `longest` tokens."""
    if not cuts:
        return []
    levels = np.array([median((*prompt.finished, *prompt.later), prompt.cut) for prompt in prompts])
    known = np.flatnonzero(~np.isnan(levels))
    scaled = [cut for cut in cuts if not np.isnan(levels[cut.prompt])]
    others = [cut for cut in cuts if np.isnan(levels[cut.prompt])]
    found = []
    if scaled:
        shared = _law([prompts[number] for number in known], levels[known])
        rests = np.array([_mean_rest(prompts[cut.prompt], levels[cut.prompt], cut.tokens) for cut in scaled])
        found.append(_tail(scaled, shared, levels, rests, longest))
    if others:
        one = np.ones(len(prompts))
        found.append(_tail(others, _law(prompts, one), one, np.zeros(len(others)), longest))
    return found


def _law(prompts: Sequence[PromptLengths], levels: Floats) -> Survival:
    """All responses to `prompts`, as multiples of their prompt's level [prompts]."""
    lengths = [np.array((*prompt.finished, *prompt.later, *prompt.cut)) for prompt in prompts]
    ended = [np.arange(len(all_)) < len(all_) - len(prompt.cut) for all_, prompt in zip(lengths, prompts, strict=True)]
    shares = [all_ / level for all_, level in zip(lengths, levels, strict=True)]
    return product_limit(np.concatenate(shares), np.concatenate(ended))


def _mean_rest(prompt: PromptLengths, level: float, tokens: int) -> float:
    """Tokens to go at a constant rate: all those lived between `level` and `tokens`, by the responses that ended there."""
    lengths = np.array((*prompt.finished, *prompt.later, *prompt.cut))
    ended = np.array((*prompt.finished, *prompt.later))
    ends = np.count_nonzero((ended > level) & (ended <= tokens))
    return float((np.clip(lengths, level, max(tokens, level)) - level).sum() / ends) if ends else 0.0


def _tail(cuts: Sequence[Cut], law: Survival, levels: Floats, rests: Floats, longest: int) -> FirstLaunches:
    """The ends of `cuts` [c] by `law`, in multiples of `levels`, and by exponential laws of means `rests` [c]."""
    numbers = np.array([cut.prompt for cut in cuts])
    tokens = np.array([[cut.tokens] for cut in cuts], dtype=np.float64)
    level = levels[numbers][:, None]
    places, shares = law.beyond(tokens / level)
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
