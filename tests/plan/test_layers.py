"""Which layers of a model stand for all of them."""

from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.plan.layers import Shortened, repeating


def test_equal_layers_are_traced_twice_two_apart() -> None:
    assert repeating(["same"] * 36, 2) == (2, 4)
    assert repeating(["same"] * 48, 4) == (4, 6)


def test_a_model_of_few_layers_is_traced_whole() -> None:
    assert repeating(["same"] * 4, 2) is None


def test_layers_without_a_pattern_are_all_traced() -> None:
    assert repeating([str(i) for i in range(40)], 2) is None


@given(
    start=st.lists(st.integers(), max_size=3),
    period=st.lists(st.integers(0, 1), min_size=1, max_size=6),
    repeats=st.integers(3, 8),
)
def test_the_difference_of_two_short_models_is_what_repeats(start: list[int], period: list[int], repeats: int) -> None:
    kinds = [f"first {kind}" for kind in start] + [str(kind) for kind in period] * repeats
    counts = repeating(kinds, 2)
    if counts is None:
        return
    fewer, more = counts
    step, rest = kinds[fewer:more], kinds[fewer:]
    for kind in set(rest):
        share = step.count(kind) / len(step)
        assert share * len(rest) == rest.count(kind), "the extension counts each kind as often as the model has it"


def test_lists_of_a_shortened_config_are_cut_too() -> None:
    content = {"num_hidden_layers": 6, "layer_types": ["a", "b"] * 3, "eos_token_id": [1, 2]}
    assert Shortened(6, (2, 4)).config(content, 2) == {
        "num_hidden_layers": 2,
        "layer_types": ["a", "b"],
        "eos_token_id": [1, 2],
    }
