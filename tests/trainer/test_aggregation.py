from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.algorithm import Aggregation
from longboat_runtime.trainer.aggregation import sample_weights, streamed_factor

TOKENS = [2, 4, 10]
LOSSES = [[1.0, 2.0], [1.0, 1.0, 2.0, 4.0], [0.5] * 10]


def loss(aggregation: Aggregation, counted: Sequence[bool] = (True, True, True), denominator: int = 3) -> float:
    weights = sample_weights(aggregation, TOKENS, counted, denominator, max_tokens=10)
    return sum(weight * sum(tokens) for weight, tokens in zip(weights, LOSSES, strict=True))


def test_sequence_mean_is_the_mean_of_the_samples_means() -> None:
    assert loss(Aggregation.SEQUENCE_MEAN) == pytest.approx((1.5 + 2.0 + 0.5) / 3)


def test_sequence_sum_divides_by_the_longest_response_allowed() -> None:
    assert loss(Aggregation.SEQUENCE_SUM) == pytest.approx((3 + 8 + 5) / (3 * 10))


def test_token_mean_is_the_mean_over_all_tokens() -> None:
    assert loss(Aggregation.TOKEN_MEAN) == pytest.approx((3 + 8 + 5) / 16)


def test_a_smaller_batch_keeps_the_denominator_of_a_full_one() -> None:
    assert loss(Aggregation.SEQUENCE_MEAN, denominator=6) == pytest.approx((1.5 + 2.0 + 0.5) / 6)
    assert loss(Aggregation.TOKEN_MEAN, denominator=6) == pytest.approx(3 / 6 * 16 / 16)


def test_more_samples_than_the_denominator_are_refused() -> None:
    with pytest.raises(ValueError, match="denominator"):
        sample_weights(Aggregation.TOKEN_MEAN, [1, 1], [True, True], 1, 10)


@given(
    st.sampled_from(Aggregation),
    st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=1, max_size=20),
    st.integers(0, 10),
)
def test_weights_add_up_to_at_most_one_and_only_counted_tokens_have_one(
    aggregation: Aggregation, samples: list[tuple[int, bool]], missing: int
) -> None:
    tokens, counted = zip(*samples, strict=True)
    weights = sample_weights(aggregation, tokens, counted, len(samples) + missing, 50)
    assert sum(weight * count for weight, count in zip(weights, tokens, strict=True)) <= 1 + 1e-9
    assert all((weight > 0) == (inside and count > 0) for weight, (count, inside) in zip(weights, samples, strict=True))


@given(st.sampled_from(Aggregation), st.lists(st.integers(1, 50), min_size=2, max_size=20))
def test_leaving_out_an_average_sample_leaves_the_others_as_they_are(
    aggregation: Aggregation, tokens: list[int]
) -> None:
    tokens = [*tokens, *tokens]
    half = len(tokens) // 2
    all_in = sample_weights(aggregation, tokens, [True] * len(tokens), len(tokens), 50)
    half_in = sample_weights(aggregation, tokens, [True] * half + [False] * half, len(tokens), 50)
    assert half_in[:half] == pytest.approx(all_in[:half])


@given(
    st.sampled_from(Aggregation),
    st.lists(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=6), min_size=1, max_size=6),
    st.integers(0, 10),
    st.floats(1, 50),
)
def test_a_streamed_step_weights_its_tokens_as_any_other_however_it_is_cut(
    aggregation: Aggregation, parts: list[list[tuple[int, bool]]], missing: int, mean_tokens: float
) -> None:
    samples = [sample for part in parts for sample in part]
    denominator = len(samples) + missing + 1

    def weights(samples: list[tuple[int, bool]], mean_tokens: float | None = None) -> list[float]:
        tokens, counted = [tokens for tokens, _ in samples], [inside for _, inside in samples]
        return sample_weights(aggregation, tokens, counted, denominator, 50, mean_tokens=mean_tokens)

    in_loss = [tokens for tokens, inside in samples if inside and tokens]
    factor = streamed_factor(aggregation, len(in_loss), sum(in_loss), mean_tokens)
    streamed = [weight * factor for part in parts for weight in weights(part, mean_tokens)]
    assert streamed == pytest.approx(weights(samples))
