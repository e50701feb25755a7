"""Samples of several turns: each drawn token is trained once, in its own context, and how turns are cut into segments changes nothing."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from longboat_crds.algorithm import Aggregation, AlgorithmName, AlgorithmSpec, RatioBounds, ResolvedAlgorithm, resolve
from longboat_crds.job import RLJobSpec
from longboat_runtime.samples import GeneratedSample, Segment, TokenRange, VersionSpan
from longboat_runtime.trainer.advantages import advantages
from longboat_runtime.trainer.batch import SampleBatch, WeightedSegment, build_batch
from longboat_runtime.trainer.protocol import TrainRequest, TrainSample
from longboat_runtime.trainer.rank import TrainerRank
from longboat_runtime.trainer.step_plan import StepPlan, plan_step
from longboat_runtime.trainer.updates import Updates
from longboat_runtime.trajectories import Turn
from tests.samples.trees import context, sample_of, trees, turn
from tests.support.tiny_model import build_tiny_model
from tests.trainer.trainer_world import fetch_from, full, make_samples, make_spec, only_rank

CPU = torch.device("cpu")
CAPACITY = 400
MAX_TOKENS = 48


def planned(samples: Sequence[GeneratedSample], *, packed: bool, ranks: int, capacity: int) -> StepPlan:
    return plan_step(
        [sample.size for sample in samples],
        [sample.id.prompt for sample in samples],
        resolve(AlgorithmSpec()),
        step=1,
        seed=0,
        denominator=len(samples),
        max_tokens=MAX_TOKENS,
        capacity=capacity,
        ranks=ranks,
        minibatches=1,
        packed=packed,
    )


def batches(plan: StepPlan, samples: Sequence[GeneratedSample], *, packed: bool) -> Iterator[SampleBatch]:
    for bin_ in (bin_ for bins in plan.minibatches[0] for bin_ in bins if bin_):
        yield build_batch(
            [WeightedSegment(samples[i], float(i), plan.weights[i], number) for i, number in bin_], CPU, packed=packed
        )


def trained_tokens(batch: SampleBatch) -> Iterator[tuple[tuple[int, ...], int, float, float]]:
    """The tokens before each trained token of a batch, that token, its log-prob and its advantage."""
    rows = batch.input_ids.tolist()
    starts = [0]
    if batch.lengths is not None:
        starts, rows = np.cumsum([0, *batch.lengths]).tolist(), [batch.input_ids[0].tolist()]
    for place, target, logprob, advantage in zip(
        batch.predicting.tolist(),
        batch.targets.tolist(),
        batch.engine_logprobs.tolist(),
        batch.advantages.tolist(),
        strict=True,
    ):
        row, last = (0, place) if batch.lengths is not None else divmod(place, len(rows[0]))
        start = max(start for start in starts if start <= last)
        yield tuple(rows[row][start : last + 1]), target, logprob, advantage


@given(st.lists(trees(), min_size=1, max_size=5), st.booleans(), st.integers(1, 3), st.integers(120, 400))
def test_each_drawn_token_is_trained_once_right_behind_the_tokens_that_it_was_drawn_behind(
    episodes: list[list[Turn]], packed: bool, ranks: int, capacity: int
) -> None:
    samples = [sample_of(turns, row) for row, turns in enumerate(episodes)]
    plan = planned(samples, packed=packed, ranks=ranks, capacity=capacity)
    trained = [token for batch in batches(plan, samples, packed=packed) for token in trained_tokens(batch)]
    drawn = [
        ((*context(turns, number), *one.token_ids[:place].tolist()), int(token), float(logprob), float(row))
        for row, turns in enumerate(episodes)
        for number, one in enumerate(turns)
        for place, (token, logprob) in enumerate(zip(one.token_ids, one.logprobs, strict=True))
    ]
    assert sorted(trained) == sorted(drawn)


# One sample, whose five turns are one segment or five. --------------------------------------------------------------


def episode(seed: int) -> list[Turn]:
    random = np.random.default_rng(seed)
    return [turn(random, number - 1 if number else None, number) for number in range(5)]


def apart(sample: GeneratedSample) -> GeneratedSample:
    """The same draws in the same contexts, each turn in a segment of its own."""
    [whole] = sample.segments
    own, start = [], 0
    for first, end in whole.trained:
        logprobs = whole.logprobs[start : start + end - first]
        spans = (VersionSpan(0, 0, end - first),)
        own.append(Segment(whole.token_ids[:end], (TokenRange(first, end),), logprobs, spans))
        start += end - first
    return replace(sample, segments=tuple(own))


WHOLE = [sample_of(episode(seed), seed // 4, seed % 4) for seed in range(8)]
APART = [apart(sample) for sample in WHOLE]
REWARDS = [1.0, 0.0, 0.5, 0.0, 1.0, 1.0, 0.0, 0.25]


def weights(samples: Sequence[GeneratedSample], algorithm: ResolvedAlgorithm) -> tuple[float, ...]:
    plan = plan_step(
        [sample.size for sample in samples],
        [sample.id.prompt for sample in samples],
        algorithm,
        step=1,
        seed=0,
        denominator=len(samples),
        max_tokens=MAX_TOKENS,
        capacity=CAPACITY,
        ranks=1,
        minibatches=1,
    )
    assert (plan.samples, plan.tokens) == (len(samples), sum(sample.size.trained for sample in samples))
    return plan.weights


@pytest.mark.parametrize("aggregation", Aggregation)
def test_one_segment_or_five_have_the_same_weights_and_a_sample_counts_once(aggregation: Aggregation) -> None:
    algorithm = resolve(AlgorithmSpec(aggregation=aggregation))
    assert [len(sample.segments) for sample in APART] == [5] * 8
    mixed = [*APART[:4], *WHOLE[4:]]
    assert weights(APART, algorithm) == weights(mixed, algorithm) == weights(WHOLE, algorithm)
    total = [weight * sample.size.trained for weight, sample in zip(weights(APART, algorithm), APART, strict=True)]
    if aggregation is Aggregation.SEQUENCE_MEAN:
        assert total == pytest.approx([1 / 8] * 8)
    requests = [request(samples) for samples in (APART, WHOLE)]
    assert [entry.advantage for entry in requests[0].samples] == [entry.advantage for entry in requests[1].samples]


@pytest.mark.parametrize("knobs", [{"name": AlgorithmName.GSPO}, {"sequence_mask": RatioBounds(low=0.5, high=2.0)}])
def test_losses_of_whole_responses_refuse_samples_in_parts(knobs: dict[str, object]) -> None:
    algorithm = resolve(AlgorithmSpec.model_validate(knobs))
    assert weights(WHOLE, algorithm)
    with pytest.raises(ValueError, match="segments may lie in several bins"):
        weights(APART, algorithm)


def request(samples: Sequence[GeneratedSample]) -> TrainRequest:
    values = advantages(REWARDS, [sample.id.prompt for sample in samples], resolve(AlgorithmSpec()))
    entries = tuple(TrainSample(sample.id, value, sample.size) for sample, value in zip(samples, values, strict=True))
    return TrainRequest(1, 100, entries, len(samples))


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainerRank]:
    model = build_tiny_model(tmp_path_factory.mktemp("model"), hidden=32)
    with only_rank(spec_of(model, "SequenceMean", 64)) as rank:
        yield rank


def spec_of(model: Path, aggregation: str, capacity: int) -> RLJobSpec:
    return make_spec(
        model,
        algorithm={"aggregation": aggregation, "importanceCap": 2.0, "entropyCoefficient": 0.01},
        rollout={"sampling": {"maxTokens": MAX_TOKENS}},
        trainer={"maxTokensPerBin": capacity, "optimizer": {"learningRate": 1e-3, "maxGradNorm": 1e6}},
    )


def computed(rank: TrainerRank, samples: Sequence[GeneratedSample]) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The gradient of a step, which isn't made, and the step's metrics."""
    gradients: dict[str, Tensor] = {}

    def copy() -> None:
        gradients.update({name: full(weight.grad).double().clone() for name, weight in rank.updates.parameters.items()})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank.updates.optimizer, "step", copy)
        metrics = rank.train(request(samples), fetch_from(samples)).metrics
    return gradients, {name: value for name, value in metrics.items() if not name.startswith("timing_s/")}


@pytest.mark.parametrize("aggregation", Aggregation)
@pytest.mark.parametrize("capacity", [80, CAPACITY])
def test_one_segment_or_five_have_the_same_gradient_and_metrics(
    rank: TrainerRank, aggregation: Aggregation, capacity: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(Path(rank.spec.model.path), aggregation.value, capacity)
    monkeypatch.setattr(rank, "spec", spec)
    monkeypatch.setattr(rank, "updates", Updates(spec, rank.model, None))
    expected, metrics = computed(rank, WHOLE)
    result, of_apart = computed(rank, APART)
    assert of_apart == pytest.approx(metrics, rel=1e-6, abs=1e-6)
    assert metrics["actor/loss_tokens"] == of_apart["actor/loss_tokens"] == sum(s.size.trained for s in WHOLE)
    size = math.sqrt(sum(float(value.square().sum()) for value in expected.values()))
    difference = math.sqrt(sum(float((result[name] - value).square().sum()) for name, value in expected.items()))
    assert size > 0
    assert difference <= 1e-6 * size


def test_what_is_behind_the_last_turn_changes_no_bit(rank: TrainerRank) -> None:
    """Such as what an environment returned at last."""

    def with_end(token: int) -> list[GeneratedSample]:
        return [
            replace(
                sample,
                segments=tuple(
                    replace(segment, token_ids=np.append(segment.token_ids, np.int32(token)))
                    for segment in sample.segments
                ),
            )
            for sample in APART
        ]

    (first, metrics), (second, others) = (computed(rank, with_end(token)) for token in (5, 6))
    assert metrics == others
    assert all(torch.equal(first[name], second[name]) for name in first)


# Single turns. ------------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.booleans())
def test_a_batch_of_single_turns_is_their_prompts_and_responses(seed: int, count: int, packed: bool) -> None:
    """Bit for bit what the batch was before there were segments."""
    samples = make_samples(count, seed)
    entries = [WeightedSegment(sample, math.sin(i), i / 7) for i, sample in enumerate(samples)]
    batch = build_batch(entries, CPU, packed=packed)
    counts = [len(sample.token_ids) for sample in samples]
    texts = [np.concatenate([sample.prompt_ids, sample.token_ids]).astype(np.int64) for sample in samples]
    longest = max(map(len, texts))
    starts = np.cumsum([0, *map(len, texts)]) if packed else np.arange(count) * longest
    weight = np.repeat(np.asarray([entry.weight for entry in entries], np.float32), counts)
    expected = {
        "input_ids": np.concatenate(texts)[None] if packed else [np.pad(t, (0, longest - len(t))) for t in texts],
        "position_ids": np.concatenate([np.arange(len(text)) for text in texts])[None] if packed else None,
        "lengths": tuple(map(len, texts)) if packed else None,
        "predicting": np.concatenate(
            [np.arange(s + len(t) - n - 1, s + len(t) - 1) for s, t, n in zip(starts, texts, counts, strict=False)]
        ),
        "targets": np.concatenate([sample.token_ids for sample in samples]).astype(np.int64),
        "owners": np.repeat(np.arange(count), counts),
        "sample_tokens": np.asarray(counts),
        "advantages": np.repeat(np.asarray([entry.advantage for entry in entries], np.float32), counts),
        "weights": weight,
        "engine_logprobs": np.concatenate([sample.logprobs for sample in samples]),
        "counted": np.flatnonzero(weight > 0),
    }
    assert expected.keys() == {field.name for field in fields(batch)}
    for name, value in expected.items():
        if isinstance(actual := getattr(batch, name), Tensor):
            wanted = torch.as_tensor(np.asarray(value))
            assert actual.dtype == wanted.dtype
            assert torch.equal(actual, wanted), name
        else:
            assert actual == value, name
