"""Windows of prompts for hypothesis: any lengths, cut or not, trained or not."""

from __future__ import annotations

from hypothesis import strategies as st

from longboat_runtime.rounds.audit.lengths import PromptLengths

LONGEST = 2000

lengths = st.integers(1, LONGEST)


@st.composite
def prompts(draw: st.DrawFn, cuts: int = 4) -> PromptLengths:
    finished = tuple(draw(st.lists(lengths, max_size=6)))
    cut = tuple(draw(st.lists(st.integers(0, LONGEST), min_size=not finished, max_size=cuts)))
    later = tuple(draw(st.lists(lengths, max_size=4)))
    ended = (*finished, *later)
    trained = draw(st.sampled_from([(), finished, later, ended[:1], ended[-1:]]))
    return PromptLengths(draw(st.sampled_from(["math", "code"])), finished, cut, later, trained)


def windows(least: int = 1, most: int = 60) -> st.SearchStrategy[list[PromptLengths]]:
    return st.lists(prompts(), min_size=least, max_size=most)
