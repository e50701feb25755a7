"""The loss of a batch under every preset, against a straightforward computation in numpy."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from longboat_crds.algorithm import (
    Aggregation,
    AlgorithmName,
    AlgorithmSpec,
    ClipAgainst,
    PolicyLoss,
    RatioBounds,
    ResolvedLoss,
    resolve_loss,
)
from longboat_runtime.samples import GeneratedSample, SampleSize
from longboat_runtime.trainer import losses
from longboat_runtime.trainer.advantages import advantages
from longboat_runtime.trainer.batch import SampleBatch, WeightedSegment, build_batch
from longboat_runtime.trainer.metrics import step_metrics
from longboat_runtime.trainer.objective import TokenLogprobs, metric_sums, objective
from longboat_runtime.trainer.step_plan import plan_step
from tests.trainer.trainer_world import make_samples

SAMPLES = make_samples(8)
GROUPS = [sample.id.prompt for sample in SAMPLES]
REWARDS = [1.0, 0.0, 0.5, 0.0, 1.0, 1.0, 0.0, 0.25]
LONGEST = 24
RANDOM = np.random.default_rng(3)
OLD = [sample.logprobs + RANDOM.normal(0, 0.3, len(sample.logprobs)).astype(np.float32) for sample in SAMPLES]
NEW = [old + RANDOM.normal(0, 0.3, len(old)).astype(np.float32) for old in OLD]
REFERENCE = [old + RANDOM.normal(0, 0.3, len(old)).astype(np.float32) for old in OLD]


def expected(algorithm: ResolvedLoss, truncated: set[int], denominator: int) -> float:
    values = advantages(REWARDS, GROUPS, algorithm)
    inside = [i for i in range(len(SAMPLES)) if not (algorithm.mask_truncated and i in truncated)]
    total = 0.0
    for i in inside:
        log_ratio = NEW[i].astype(np.float64) - OLD[i]
        ratio = np.exp(
            np.full_like(log_ratio, log_ratio.mean()) if algorithm.policy_loss is PolicyLoss.GSPO else log_ratio
        )
        clip = np.clip(ratio, 1 - algorithm.clip_low, 1 + algorithm.clip_high)
        token = -np.minimum(ratio * values[i], clip * values[i])
        if algorithm.policy_loss is PolicyLoss.CISPO:
            token = -np.minimum(ratio, 1 + algorithm.clip_high) * values[i] * NEW[i]
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


def computed(algorithm: ResolvedLoss, truncated: set[int], denominator: int, capacity: int) -> float:
    """The sum over all bins."""
    sizes = [SampleSize(s.size.segments, i in truncated) for i, s in enumerate(SAMPLES)]
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
        for places in bins:
            members = tuple(place.sample for place in places)
            batch = build_batch(
                [WeightedSegment(SAMPLES[i], values[i], plan.weights[i]) for i in members], torch.device("cpu")
            )
            logprobs = TokenLogprobs(
                joined(NEW, members), joined(OLD, members), joined(REFERENCE, members), torch.zeros(len(batch.targets))
            )
            if not algorithm.kl_coefficient:
                logprobs = replace(logprobs, reference=None)
            total += objective(logprobs, batch, algorithm).total.item()
    return total


def loss_and_sums(
    logprobs: TokenLogprobs, batch: SampleBatch, algorithm: ResolvedLoss
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss = objective(logprobs, batch, algorithm)
    return loss.total, metric_sums(loss, logprobs, batch, algorithm)


def joined(values: list[np.ndarray], members: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([values[i] for i in members] or [np.zeros(1, np.float32)]))


@pytest.mark.parametrize("name", AlgorithmName)
@pytest.mark.parametrize("capacity", [40, 1000])
@pytest.mark.parametrize("knobs", [{"importance_cap": 0}, {"importance_cap": 1.5, "kl_coefficient": 0.2}])
def test_every_preset(name: AlgorithmName, capacity: int, knobs: dict[str, float]) -> None:
    algorithm = resolve_loss(AlgorithmSpec(name=name, **knobs), off_policy=False)
    truncated = {2, 5}
    for denominator in (8, 12):
        assert computed(algorithm, truncated, denominator, capacity) == pytest.approx(
            expected(algorithm, truncated, denominator), rel=1e-5, abs=1e-7
        )


def weighted(sample: GeneratedSample, weight: float) -> WeightedSegment:
    return WeightedSegment(sample, 1.0, weight)


def test_metrics_are_means_over_the_tokens_that_count() -> None:
    inside, outside = SAMPLES[0], SAMPLES[1]
    batch = build_batch([weighted(inside, 0.25), weighted(outside, 0.0)], torch.device("cpu"))
    logprobs = TokenLogprobs(joined(NEW, (0, 1)), joined(OLD, (0, 1)), None, torch.ones(len(batch.targets)))
    algorithm = resolve_loss(AlgorithmSpec(), off_policy=False)
    _, sums = loss_and_sums(logprobs, batch, algorithm)
    metrics = step_metrics({key: value.item() for key, value in sums.items()}, minibatches=1, algorithm=algorithm)
    difference = np.abs(np.exp(OLD[0]) - np.exp(inside.logprobs))
    assert metrics["actor/loss_tokens"] == len(inside.token_ids)
    assert metrics["actor/entropy"] == pytest.approx(1.0)
    assert metrics["actor/ppo_kl"] == pytest.approx((OLD[0] - NEW[0]).mean(), rel=1e-4)
    assert metrics["training/rollout_probs_diff_mean"] == pytest.approx(difference.mean(), rel=1e-4)
    assert metrics["training/rollout_probs_diff_max"] == pytest.approx(difference.max(), rel=1e-4)
    assert metrics["mismatch_kl/k1"] == pytest.approx((inside.logprobs - OLD[0]).mean(), rel=1e-4)
    assert not metrics.keys() & {"actor/kl_loss", "actor/entropy_loss"}


def test_an_entropy_bonus_is_subtracted_with_the_weights_of_the_tokens() -> None:
    plain = resolve_loss(AlgorithmSpec(kl_coefficient=0.2), off_policy=False)
    algorithm = replace(plain, entropy_coefficient=0.5)
    batch, logprobs = whole_batch(plain), all_logprobs(plain)
    entropy = torch.linspace(0.5, 2.0, len(batch.targets)).requires_grad_()
    without = objective(logprobs, batch, plain).total
    loss, sums = loss_and_sums(replace(logprobs, entropy=entropy), batch, algorithm)
    loss.backward()
    weighted_sum = (entropy * batch.weights).sum().item()
    assert loss.item() == pytest.approx(without.item() - 0.5 * weighted_sum)
    torch.testing.assert_close(entropy.grad, -0.5 * batch.weights)
    metrics = step_metrics({key: value.item() for key, value in sums.items()}, minibatches=2, algorithm=algorithm)
    assert metrics["actor/entropy_loss"] == pytest.approx(weighted_sum / 2)
    assert metrics["actor/entropy_coeff"] == 0.5


# Loss, gradient and sums of on-policy jobs, as they were before there was any other loss.
RECORDED = json.loads((Path(__file__).parent / "on_policy_losses.json").read_text())
ON_POLICY: dict[str, tuple[dict[str, Any], bool]] = {
    "GRPO": ({}, True),
    "GRPO minibatches": ({}, False),
    "DAPO": ({"name": "DAPO", "importance_cap": 0}, False),
    "Dr. GRPO with KL": ({"name": "DrGRPO", "kl_coefficient": 0.1, "importance_cap": 1.5}, False),
}
EVERY = tuple(range(len(SAMPLES)))


def whole_batch(algorithm: ResolvedLoss) -> SampleBatch:
    """All samples, each with a weight of its own."""
    values = advantages(REWARDS, GROUPS, algorithm)
    entries = zip(SAMPLES, values, strict=True)
    return build_batch(
        [WeightedSegment(sample, value, 0.01 * (i + 1)) for i, (sample, value) in enumerate(entries)],
        torch.device("cpu"),
    )


def all_logprobs(algorithm: ResolvedLoss, *, moved: bool = True) -> TokenLogprobs:
    """Of NEW, with gradient, and OLD; not `moved`: the weights are still those of OLD."""
    new = joined(NEW if moved else OLD, EVERY).requires_grad_()
    reference = joined(REFERENCE, EVERY) if algorithm.kl_coefficient else None
    return TokenLogprobs(new, joined(OLD, EVERY), reference, torch.ones(len(new)))


@pytest.mark.parametrize("name", ON_POLICY)
def test_on_policy_losses_are_what_they_were(name: str) -> None:
    knobs, same = ON_POLICY[name]
    algorithm, recorded = resolve_loss(AlgorithmSpec.model_validate(knobs), off_policy=False), RECORDED[name]
    batch, logprobs = whole_batch(algorithm), all_logprobs(algorithm, moved=not same)
    loss, sums = loss_and_sums(logprobs, batch, algorithm)
    loss.backward()
    # Exponentials differ between processors by their last bit.
    assert loss.item() == pytest.approx(recorded["loss"], rel=1e-5)
    np.testing.assert_allclose(logprobs.new.grad, recorded["gradient"], rtol=1e-5)
    for key, value in recorded["sums"].items():
        assert sums[key].item() == pytest.approx(value, rel=1e-5, abs=1e-6), key


@pytest.mark.parametrize("name", ON_POLICY)
def test_on_policy_losses_are_bit_for_bit_the_clipped_surrogate_times_the_capped_weight(name: str) -> None:
    knobs, same = ON_POLICY[name]
    algorithm = resolve_loss(AlgorithmSpec.model_validate(knobs), off_policy=False)
    batch, logprobs = whole_batch(algorithm), all_logprobs(algorithm, moved=not same)
    loss = objective(logprobs, batch, algorithm).total
    loss.backward()
    by_hand = all_logprobs(algorithm, moved=not same)
    ratio = (by_hand.new - by_hand.old).clamp(-20, 20).exp()
    clip = ratio.clamp(1.0 - algorithm.clip_low, 1.0 + algorithm.clip_high)
    total = -torch.minimum(ratio * batch.advantages, clip * batch.advantages)
    weight = torch.ones_like(total)
    if algorithm.importance_cap:
        weight = (by_hand.old - batch.engine_logprobs).clamp(-20, 20).exp().clamp(max=algorithm.importance_cap)
    total = (total * weight * batch.weights).sum()
    if by_hand.reference is not None:
        total = total + algorithm.kl_coefficient * (losses.k3(by_hand.new, by_hand.reference) * batch.weights).sum()
    total.backward()
    assert loss.item() == total.item()
    assert torch.equal(logprobs.new.grad, by_hand.new.grad)


# The probability ratios of OLD to the engines' spread about 0.3 around 1.
BAND = RatioBounds(low=0.8, high=1.3)
LOSSES = [
    {"clip_against": against, "dual_clip": limit, "importance_mask": mask, "sequence_mask": whole}
    for against in ClipAgainst
    for limit in (None, 1.25)
    for mask in (None, BAND)
    for whole in (None, BAND)
]


@pytest.mark.parametrize("knobs", LOSSES)
def test_gradients_of_every_off_policy_loss(knobs: dict[str, Any]) -> None:
    """-A * ratio * weight for every token, but 0 for those that are clipped or masked."""
    algorithm = resolve_loss(AlgorithmSpec(**knobs), off_policy=True)
    batch, logprobs = whole_batch(algorithm), all_logprobs(algorithm)
    loss, sums = loss_and_sums(logprobs, batch, algorithm)
    loss.backward()
    new, old, engine = (np.concatenate(of).astype(np.float64) for of in (NEW, OLD, [s.logprobs for s in SAMPLES]))
    behaviour = knobs["clip_against"] is ClipAgainst.BEHAVIOUR
    ratio, shift = np.exp(new - (engine if behaviour else old)), np.exp(old - engine)
    value = batch.advantages.numpy()
    weight = np.ones_like(shift)
    if not behaviour:
        weight = shift if knobs["importance_mask"] else np.minimum(shift, 2.0)
    clipped = ((ratio > 1.2) & (value > 0)) | ((ratio < 0.8) & (value < 0))
    beyond = (ratio > (knobs["dual_clip"] or np.inf)) & (value < 0)
    tokens = (shift >= 0.8) & (shift <= 1.3) if knobs["importance_mask"] else np.ones_like(clipped)
    lengths = [len(sample.token_ids) for sample in SAMPLES]
    wholes = [np.exp((o - s.logprobs).astype(np.float64).sum()) for o, s in zip(OLD, SAMPLES, strict=True)]
    responses = [0.8 <= whole <= 1.3 if knobs["sequence_mask"] else True for whole in wholes]
    kept = tokens & np.repeat(responses, lengths)
    expected = np.where(kept & ~clipped & ~beyond, -value * ratio * weight, 0.0) * batch.weights.numpy()
    np.testing.assert_allclose(logprobs.new.grad, expected, rtol=1e-4, atol=1e-9)
    metrics = step_metrics({key: value.item() for key, value in sums.items()}, minibatches=1, algorithm=algorithm)
    assert metrics["actor/pg_clipfrac"] == pytest.approx(clipped.mean())
    assert metrics["actor/pg_clipfrac_lower"] == pytest.approx(beyond.mean())
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(1 - kept.mean())
    assert metrics["rollout_corr/rollout_rs_seq_masked_fraction"] == pytest.approx(1 - np.mean(responses))
    assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx((weight * kept).mean(), rel=1e-4)


@pytest.mark.parametrize("against", ClipAgainst)
@pytest.mark.parametrize("name", [AlgorithmName.GSPO, AlgorithmName.CISPO])
def test_gradients_of_gspo_and_cispo(name: AlgorithmName, against: ClipAgainst) -> None:
    """-A * ratio * weight for every token; GSPO's ratio is one for a response, CISPO's goes no further than its cap."""
    clips = {"clip_low": 0.05, "clip_high": 0.05} if name is AlgorithmName.GSPO else {"clip_high": 0.3}
    algorithm = resolve_loss(AlgorithmSpec(name=name, clip_against=against, **clips), off_policy=True)
    batch, logprobs = whole_batch(algorithm), all_logprobs(algorithm)
    loss, sums = loss_and_sums(logprobs, batch, algorithm)
    loss.backward()
    behaviour = against is ClipAgainst.BEHAVIOUR
    engine = [sample.logprobs for sample in SAMPLES]
    ratios = [(new.astype(np.float64) - old) for new, old in zip(NEW, engine if behaviour else OLD, strict=True)]
    if name is AlgorithmName.GSPO:
        ratios = [np.full_like(ratio, ratio.mean()) for ratio in ratios]
    ratio, value = np.exp(np.concatenate(ratios)), batch.advantages.numpy()
    shift = np.exp(np.concatenate(OLD).astype(np.float64) - np.concatenate(engine))
    weight = np.ones_like(ratio) if behaviour else np.minimum(shift, 2.0)
    if name is AlgorithmName.GSPO:
        clipped = ((ratio > 1.05) & (value > 0)) | ((ratio < 0.95) & (value < 0))
        factor = np.where(clipped, 0.0, ratio)
    else:
        clipped, factor = ratio > 1.3, np.minimum(ratio, 1.3)
    assert 0 < clipped.mean() < 1
    np.testing.assert_allclose(logprobs.new.grad, -value * factor * weight * batch.weights.numpy(), rtol=1e-4)
    assert sums["clipped"].item() == clipped.sum()


ON_DRAWN_WEIGHTS = [
    *LOSSES,
    {"name": "GSPO", "clip_against": ClipAgainst.BEHAVIOUR, "clip_low": 0.03, "clip_high": 0.03},
    {"name": "CISPO", "clip_against": ClipAgainst.BEHAVIOUR},
]


@pytest.mark.parametrize("knobs", ON_DRAWN_WEIGHTS)
def test_every_loss_has_the_plain_policy_gradient_on_the_weights_that_drew_the_tokens(knobs: dict[str, Any]) -> None:
    algorithm = resolve_loss(AlgorithmSpec(**knobs), off_policy=True)
    batch = whole_batch(algorithm)
    new = batch.engine_logprobs.clone().requires_grad_()
    loss, sums = loss_and_sums(TokenLogprobs(new, batch.engine_logprobs, None, torch.zeros_like(new)), batch, algorithm)
    loss.backward()
    assert torch.equal(new.grad, -batch.advantages * batch.weights)
    assert sums["clipped"] == sums["clipped_lower"] == sums["masked"] == sums["masked_responses"] == 0


def test_one_minibatch_clips_against_the_behaviour_policy_and_never_against_the_proximal_one() -> None:
    clipped = {}
    for against in ClipAgainst:
        algorithm = resolve_loss(AlgorithmSpec(clip_against=against), off_policy=True)
        _, sums = loss_and_sums(all_logprobs(algorithm, moved=False), whole_batch(algorithm), algorithm)
        clipped[against] = sums["clipped"].item()
    assert clipped[ClipAgainst.PROXIMAL] == 0
    assert clipped[ClipAgainst.BEHAVIOUR] > 0
