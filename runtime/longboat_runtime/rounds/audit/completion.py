"""First launches with what was cut short completed. Pure.

A response cut at c tokens would have gone on. Later attempts of the same prompt are draws from the same law, so each of those
that are longer than c is as likely an end. Where there is none the end is modelled: see `tails`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from longboat_runtime.rounds.audit.first_launches import FirstLaunches, join
from longboat_runtime.rounds.audit.lengths import PromptLengths
from longboat_runtime.rounds.audit.tails import Cut, tails


def complete(prompts: Sequence[PromptLengths], longest: int) -> FirstLaunches:
    """The first launches of `prompts`, all of one domain, numbered in their order. No response has more than `longest` tokens."""
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
    seen = FirstLaunches(numbers.astype(np.intp), lengths, lengths, lengths, masses, modelled)
    return join([seen, *tails(prompts, unknown, longest)])
