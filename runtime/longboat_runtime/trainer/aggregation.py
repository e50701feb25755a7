"""Weights that turn token losses into one number. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from longboat_crds.algorithm import Aggregation


def sample_weights(
    aggregation: Aggregation,
    tokens: Sequence[int],
    counted: Sequence[bool],
    denominator: int,
    max_tokens: int,
    *,
    mean_tokens: float | None = None,
) -> list[float]:
    """Returns for each sample the weight of each of its response tokens: the step's loss is the sum of weight * token loss.

    `tokens[i]` is the number of response tokens of sample i, `counted[i]` says if it is in the loss, `denominator` is the
    constant number N of samples of a full batch and `max_tokens` the longest response allowed. `mean_tokens` stands in for the mean of a
    step that has other samples too; the step's sum is then multiplied by `streamed_factor`.

    Weights depend on the step alone, never on how the samples are split into micro-batches or ranks. Without `mean_tokens`, those of
    all tokens add up to at most n / N if n samples are counted. Tokens of the others have weight 0. Raises ValueError if there are more
    than N samples.

    * SequenceMean, GRPO (arXiv 2402.03300 eq. 3): 1 / (N * tokens of the sample).
    * SequenceSum, Dr. GRPO (arXiv 2503.20783 §3.2): 1 / (N * max_tokens), the same for long and short samples.
    * TokenMean, DAPO (arXiv 2503.14476 §3.3): (n / N) / T, where the n samples counted have T tokens; 1 / (N * mean_tokens) if that is
      given.
    """
    if denominator < len(tokens):
        raise ValueError(f"{len(tokens)} samples, but the denominator of a full batch is {denominator}")
    used = [count if inside else 0 for count, inside in zip(tokens, counted, strict=True)]
    if aggregation is Aggregation.SEQUENCE_MEAN:
        return [1.0 / (denominator * count) if count else 0.0 for count in used]
    if aggregation is Aggregation.SEQUENCE_SUM:
        return [1.0 / (denominator * max_tokens) if count else 0.0 for count in used]
    if mean_tokens is not None:
        return [1.0 / (denominator * mean_tokens) if count else 0.0 for count in used]
    samples, total = sum(1 for count in used if count), sum(used)
    return [samples / (denominator * total) if count else 0.0 for count in used]


def streamed_factor(aggregation: Aggregation, samples: int, tokens: int, mean_tokens: float) -> float:
    """Returns what the loss of a streamed step, and its gradient, is multiplied by once all its `samples` that count are known.

    They have so many `tokens`; `mean_tokens` is what their weights were computed with. TokenMean: n * mean_tokens / T. Others: 1.
    """
    return samples * mean_tokens / tokens if aggregation is Aggregation.TOKEN_MEAN and tokens else 1.0
