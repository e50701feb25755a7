"""The loss of a batch under every preset, against a straightforward computation in numpy."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from longboat_crds.algorithm import Aggregation, AlgorithmName, AlgorithmSpec, ResolvedAlgorithm, resolve
from longboat_runtime.samples import GeneratedSample
from longboat_runtime.trainer.advantages import advantages
from longboat_runtime.trainer.batch import WeightedSample, build_batch
from longboat_runtime.trainer.metrics import step_metrics
from longboat_runtime.trainer.objective import TokenLogprobs, objective
from longboat_runtime.trainer.step_plan import SampleSize, plan_step
from tests.trainer.trainer_world import make_samples

SAMPLES = make_samples(8)
GROUPS = [sample.id.prompt for sample in SAMPLES]
REWARDS = [1.0, 0.0, 0.5, 0.0, 1.0, 1.0, 0.0, 0.25]
LONGEST = 24
RANDOM = np.random.default_rng(3)
OLD = [sample.logprobs + RANDOM.normal(0, 0.3, len(sample.logprobs)).astype(np.float32) for sample in SAMPLES]
NEW = [old + RANDOM.normal(0, 0.3, len(old)).astype(np.float32) for old in OLD]
REFERENCE = [old + RANDOM.normal(0, 0.3, len(old)).astype(np.float32) for old in OLD]


def expected(algorithm: ResolvedAlgorithm, truncated: set[int], denominator: int) -> float:
    values = advantages(REWARDS, GROUPS, algorithm)
    inside = [i for i in range(len(SAMPLES)) if not (algorithm.mask_truncated and i in truncated)]
    total = 0.0
    for i in inside:
        ratio = np.exp(NEW[i].astype(np.float64) - OLD[i])
        clip = np.clip(ratio, 1 - algorithm.clip_low, 1 + algorithm.clip_high)
        token = -np.minimum(ratio * values[i], clip * values[i])
        if algorithm.importance_cap:
            token = token * np.minimum(
                np.exp(OLD[i].astype(np.float64) - SAMPLES[i].logprobs), algorithm.importance_cap
            )
        if algorithm.kl_coefficient:
            delta = REFERENCE[i].astype(np.float64) - NEW[i]
            token = token + algorithm.kl_coefficient * (np.exp(delta) - 1 - delta)
        if algorithm.aggregation is Aggregation.SEQUENCE_MEAN:
            total += token.mean() / denominator
        elif algorithm.aggregation is Aggregation.SEQUENCE_SUM:
            total += token.sum() / LONGEST / denominator
        else:
            tokens = sum(len(SAMPLES[j].token_ids) for j in inside)
            total += token.sum() / tokens * len(inside) / denominator
    return total


def computed(algorithm: ResolvedAlgorithm, truncated: set[int], denominator: int, capacity: int) -> float:
    """The sum over all bins."""
    sizes = [SampleSize(len(s.prompt_ids), len(s.token_ids), i in truncated) for i, s in enumerate(SAMPLES)]
    plan = plan_step(
        sizes,
        GROUPS,
        algorithm,
        step=1,
        seed=0,
        denominator=denominator,
        max_tokens=LONGEST,
        capacity=capacity,
        ranks=2,
        minibatches=1,
    )
    values = advantages(REWARDS, GROUPS, algorithm)
    total = 0.0
    for bins in plan.minibatches[0]:
        for members in bins:
            batch = build_batch(
                [WeightedSample(SAMPLES[i], values[i], plan.weights[i]) for i in members], torch.device("cpu")
            )
            logprobs = TokenLogprobs(
                joined(NEW, members), joined(OLD, members), joined(REFERENCE, members), torch.zeros(len(batch.targets))
            )
            if not algorithm.kl_coefficient:
                logprobs = replace(logprobs, reference=None)
            total += objective(logprobs, batch, algorithm)[0].item()
    return total


def joined(values: list[np.ndarray], members: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([values[i] for i in members] or [np.zeros(1, np.float32)]))


@pytest.mark.parametrize("name", AlgorithmName)
@pytest.mark.parametrize("capacity", [40, 1000])
@pytest.mark.parametrize("knobs", [{"importance_cap": 0}, {"importance_cap": 1.5, "kl_coefficient": 0.2}])
def test_every_preset(name: AlgorithmName, capacity: int, knobs: dict[str, float]) -> None:
    algorithm = resolve(AlgorithmSpec(name=name, **knobs))
    truncated = {2, 5}
    for denominator in (8, 12):
        assert computed(algorithm, truncated, denominator, capacity) == pytest.approx(
            expected(algorithm, truncated, denominator), rel=1e-5, abs=1e-7
        )


def weighted(sample: GeneratedSample, weight: float) -> WeightedSample:
    return WeightedSample(sample, 1.0, weight)


def test_metrics_are_means_over_the_tokens_that_count() -> None:
    inside, outside = SAMPLES[0], SAMPLES[1]
    batch = build_batch([weighted(inside, 0.25), weighted(outside, 0.0)], torch.device("cpu"))
    logprobs = TokenLogprobs(joined(NEW, (0, 1)), joined(OLD, (0, 1)), None, torch.ones(len(batch.targets)))
    _, sums = objective(logprobs, batch, resolve(AlgorithmSpec()))
    metrics = step_metrics({key: value.item() for key, value in sums.items()}, minibatches=1, kl_coefficient=0.0)
    difference = np.abs(np.exp(OLD[0]) - np.exp(inside.logprobs))
    assert metrics["actor/loss_tokens"] == len(inside.token_ids)
    assert metrics["actor/entropy"] == pytest.approx(1.0)
    assert metrics["actor/ppo_kl"] == pytest.approx((OLD[0] - NEW[0]).mean(), rel=1e-4)
    assert metrics["training/rollout_probs_diff_mean"] == pytest.approx(difference.mean(), rel=1e-4)
    assert metrics["training/rollout_probs_diff_max"] == pytest.approx(difference.max(), rel=1e-4)
    assert metrics["mismatch_kl/k1"] == pytest.approx((inside.logprobs - OLD[0]).mean(), rel=1e-4)
    assert "actor/kl_loss" not in metrics
