"""Cut responses are completed by the same prompt's later attempts or a model, and never become shorter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from longboat_runtime.rounds.audit.first_launches import FirstLaunches, complete
from longboat_runtime.rounds.audit.lengths import PromptLengths
from longboat_runtime.rounds.audit.survival import TAIL_PARTS, exponential, median, product_limit
from tests.rounds.audit.windows import LONGEST, windows
from tests.support.examples import examples


def prompt(finished: tuple[int, ...], cut: tuple[int, ...] = (), later: tuple[int, ...] = ()) -> PromptLengths:
    return PromptLengths("math", finished, cut, later, trained=())


def of(distribution: FirstLaunches, number: int) -> dict[float, float]:
    """Likely length -> mass."""
    lengths, atoms = np.unique(distribution.likely[distribution.prompts == number].round(6), return_inverse=True)
    return dict(zip(lengths, np.bincount(atoms, distribution.masses[distribution.prompts == number]), strict=True))


def test_a_cut_response_ends_as_later_attempts_of_its_prompt_do() -> None:
    distribution = complete([prompt((100,), cut=(200,), later=(150, 300, 500)), prompt((1000, 1100))], LONGEST)
    assert of(distribution, 0) == pytest.approx({100: 0.5, 300: 0.25, 500: 0.25})
    assert of(distribution, 1) == pytest.approx({1000: 0.5, 1100: 0.5})
    assert distribution.modelled_share == 0


def test_without_a_longer_attempt_it_ends_as_others_do_at_their_level() -> None:
    """Twice or four times the median, not at the 1,000 tokens of a prompt that is ten times as long."""
    distribution = complete([prompt((10, 10, 10), cut=(15,)), prompt((100, 100, 100, 200, 400))], LONGEST)
    assert of(distribution, 0) == pytest.approx({10: 0.75, 20: 0.125, 40: 0.125})
    assert distribution.modelled_share == pytest.approx(1 / 8)


def test_a_prompt_that_was_mostly_cut_ends_as_anything_longer_does() -> None:
    distribution = complete([prompt((), cut=(150,)), prompt((100, 100, 200, 400))], LONGEST)
    assert of(distribution, 0) == pytest.approx({200: 0.5, 400: 0.5})


def test_where_nothing_was_longer_it_ends_between_its_cut_and_the_limit() -> None:
    distribution = complete([prompt((100, 100), cut=(300,))], LONGEST)
    cut = distribution.modelled
    assert distribution.likely[cut] == pytest.approx([300])
    assert distribution.far[cut] == pytest.approx([LONGEST])


def test_the_nearest_end_is_at_the_rate_at_which_the_prompt_ended() -> None:
    """Beyond the median of 200 tokens there are 3 x 100 tokens, and one response ended."""
    distribution = complete([prompt((90, 100, 100, 200, 300), cut=(300, 300)), prompt((100, 100, 100, 2000))], LONGEST)
    parts = distribution.modelled
    assert np.average(distribution.likely[parts], weights=distribution.masses[parts]) == pytest.approx(2000)
    assert np.average(distribution.near[parts], weights=distribution.masses[parts]) == pytest.approx(300 + 300)


@given(windows())
@settings(max_examples=examples(100))
def test_completing_never_shortens_and_keeps_every_prompt_at_one(window: list[PromptLengths]) -> None:
    distribution = complete(window, LONGEST)
    assert np.bincount(distribution.prompts, distribution.masses, len(window)) == pytest.approx(np.ones(len(window)))
    assert (distribution.near <= distribution.likely).all()
    assert (distribution.likely <= distribution.far).all()
    assert distribution.far.max() <= LONGEST
    for number, prompt in enumerate(window):
        known = np.sort([*prompt.finished, *prompt.cut])
        of_prompt = distribution.prompts == number
        for length in known:
            below = distribution.masses[of_prompt & (distribution.near < length - 1e-9)].sum()
            assert below <= np.count_nonzero(known < length) / len(known) + 1e-9


def test_the_product_limit_of_remissions() -> None:
    """Gehan 1965 (6-mercaptopurine), the textbook example."""
    finished = [6, 6, 6, 7, 10, 13, 16, 22, 23]
    cut = [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    distribution = product_limit(np.array([*cut, *finished], dtype=float), np.arange(21) >= len(cut))
    surviving = dict(zip(distribution.values, 1 - np.cumsum(distribution.masses), strict=True))
    expected = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}
    assert surviving == pytest.approx(expected, abs=5e-4)
    assert distribution.rest == pytest.approx(0.448, abs=5e-4)
    assert (distribution.last, median(finished, cut)) == (35, 23)
    assert np.isnan(median([6], [7, 7]))


def test_a_tail_keeps_its_mean() -> None:
    distribution = product_limit(np.arange(1.0, 101), np.full(100, True))
    places, masses = distribution.beyond(np.array([[0.0], [50.0], [99.5], [100.0]]))
    assert places.shape == masses.shape == (4, TAIL_PARTS + 1)
    assert (places * masses).sum(1) == pytest.approx([50.5, 75.5, 100, 100])
    assert masses[:, -1] == pytest.approx([0, 0, 0, 1])


def test_an_exponential_distribution_in_parts() -> None:
    masses = np.array([[0.25, 0.25, 0.5, 0.0], [0.0, 0.0, 0.0, 1.0]])
    means = exponential(masses)
    assert (means * masses).sum(1) == pytest.approx([1, 1])
    assert means[0, 2] == pytest.approx(1 + np.log(2))
