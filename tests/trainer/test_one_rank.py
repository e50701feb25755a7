"""What one rank computes, in this process."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.checkpoint import sharded
from longboat_runtime.samples import FinishReason, GeneratedSample, SampleId
from longboat_runtime.trainer.batch import WeightedSegment, build_batch
from longboat_runtime.trainer.forward import frozen_logprobs
from longboat_runtime.trainer.loss_scale import LossScale
from longboat_runtime.trainer.machine import MACHINE
from longboat_runtime.trainer.protocol import TrainRequest
from longboat_runtime.trainer.rank import TrainerRank
from longboat_runtime.trainer.sharding import not_finite, parameter_count
from longboat_runtime.trainer.updates import Updates
from tests.support.checkpoints import described
from tests.support.examples import examples
from tests.support.samples import with_response
from tests.support.tiny_model import build_tiny_model
from tests.trainer.trainer_world import (
    fetch_from,
    full,
    local,
    make_request,
    make_samples,
    make_spec,
    only_rank,
    put_back,
)

SAMPLES = make_samples(9)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model"), hidden=64)


@pytest.fixture(scope="module")
def loaded(directory: Path) -> Iterator[TrainerRank]:
    with only_rank(make_spec(directory, algorithm={"importanceCap": 2.0, "klCoefficient": 0.1})) as rank:
        yield rank


@pytest.fixture
def rank(loaded: TrainerRank, tmp_path: Path) -> Iterator[TrainerRank]:
    with put_back(loaded, tmp_path / "before"):
        yield loaded


def whole(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([full(tensor).flatten() for tensor in tensors])


def weights(rank: TrainerRank) -> Tensor:
    return whole(rank.updates.parameters.values()).detach().clone()


def gradient(rank: TrainerRank, bins: Iterable[Iterable[int]]) -> Tensor:
    """Of SAMPLES with equal weights, packed in `bins` of positions."""
    batches = [
        build_batch([WeightedSegment(SAMPLES[i], (-1.0) ** i, 1 / len(SAMPLES)) for i in positions], rank.device)
        for positions in bins
    ]
    reference = [frozen_logprobs(rank.updates.reference, batch, platform=MACHINE) for batch in batches]
    rank.updates.accumulate(batches, None, reference)
    result = whole([parameter.grad for parameter in rank.updates.parameters.values()])
    rank.updates.optimizer.zero_grad()
    return result


@settings(max_examples=examples(10), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_gradient_is_the_same_however_samples_are_split(loaded: TrainerRank, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(9)))
    cuts = sorted(data.draw(st.sets(st.integers(0, 9), max_size=9)))
    bins = [order[start:end] for start, end in zip([0, *cuts], [*cuts, 9], strict=True)]
    batch = gradient(loaded, [range(9)])
    assert (gradient(loaded, bins) - batch).norm() < 1e-5 * batch.norm()


def test_the_gradient_is_that_of_plain_reinforce(loaded: TrainerRank, directory: Path) -> None:
    """First step on-policy: sum of weight * advantage * grad log p, by the model's own forward. The KL term starts at 0."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    total = torch.zeros(())
    for i, sample in enumerate(SAMPLES):
        tokens = torch.from_numpy(np.concatenate([sample.prompt_ids, sample.token_ids]).astype(np.int64))
        logprobs = model(input_ids=tokens[None]).logits[0, :-1].log_softmax(-1).gather(-1, tokens[1:, None])[:, 0]
        chosen = logprobs[len(sample.prompt_ids) - 1 :]
        importance = (chosen.detach() - torch.from_numpy(sample.logprobs)).exp().clamp(max=2.0)
        total = total - ((-1.0) ** i / len(SAMPLES)) * (importance * chosen).sum()
    total.backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert (gradient(loaded, [range(9)]) - expected).norm() < 1e-5 * expected.norm()


def test_the_gradient_of_an_entropy_bonus_is_that_of_the_models_own_forward(
    rank: TrainerRank, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = {"importanceCap": 2.0, "klCoefficient": 0.1}
    monkeypatch.setattr(rank, "updates", Updates(rank.spec, rank.model, rank.updates.reference))
    plain = gradient(rank, [range(9)])
    spec = make_spec(directory, algorithm={**algorithm, "entropyCoefficient": 0.5})
    monkeypatch.setattr(rank, "updates", Updates(spec, rank.model, rank.updates.reference))
    result = gradient(rank, [range(4), range(4, 9)]) - plain
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    bonus = torch.zeros(())
    for sample in SAMPLES:
        tokens = torch.from_numpy(np.concatenate([sample.prompt_ids, sample.token_ids]).astype(np.int64))
        logprobs = model(input_ids=tokens[None]).logits[0, len(sample.prompt_ids) - 1 : -1].log_softmax(-1)
        bonus = bonus - (logprobs.exp() * logprobs).sum() / len(SAMPLES)
    (-0.5 * bonus).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert expected.norm() > 0.01 * plain.norm()
    assert (result - expected).norm() < 1e-5 * max(expected.norm(), plain.norm())


def test_a_step_reports_metrics_by_verls_names(rank: TrainerRank) -> None:
    metrics = rank.train(make_request(SAMPLES), fetch_from(SAMPLES)).metrics
    assert metrics["actor/lr"] == 1e-3
    assert metrics["actor/loss_tokens"] == sum(len(sample.token_ids) for sample in SAMPLES)
    assert metrics["actor/grad_norm"] > 0
    assert metrics["actor/ppo_kl"] == 0.0
    assert metrics["actor/pg_clipfrac"] == 0.0
    assert metrics["actor/kl_loss"] == pytest.approx(0.0, abs=1e-9)
    assert 0 < metrics["actor/entropy"] <= math.log(264)
    assert 0 <= metrics["training/rollout_probs_diff_mean"] <= metrics["training/rollout_probs_diff_max"] <= 1
    assert metrics["mismatch_kl/k3"] >= 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_what_a_gpu_still_computes_for_the_reference_is_no_part_of_the_updates(rank: TrainerRank) -> None:
    rank.train(make_request(SAMPLES), fetch_from(SAMPLES))  # compiles
    hook = rank.updates.reference.register_forward_hook(lambda *_: torch.cuda._sleep(2**31))
    try:
        report = rank.train(make_request(SAMPLES, step=2), fetch_from(SAMPLES))
    finally:
        hook.remove()
    assert report.metrics["timing_s/old_log_prob"] > report.seconds


@pytest.mark.parametrize(
    ("schedule", "course"),
    [("Linear", lambda left: left), ("Cosine", lambda left: 0.5 * (1 - math.cos(math.pi * left)))],
)
def test_the_learning_rate_is_stretched_from_the_first_step_of_a_longer_job(
    rank: TrainerRank, directory: Path, schedule: str, course: Callable[[float], float]
) -> None:
    """Raised from 20 steps to 30 while step 15 was made."""
    optimizer = {"learningRate": 1e-3, "schedule": schedule}
    rank.updates.spec = make_spec(directory, trainer={"optimizer": optimizer})
    requests = [replace(make_request(SAMPLES, step=step), steps=steps) for step, steps in ((15, 20), (16, 30))]
    rates = [rank.train(request, fetch_from(SAMPLES)).metrics["actor/lr"] for request in requests]
    assert rates == [pytest.approx(1e-3 * course(left)) for left in (6 / 20, 15 / 30)]


def test_a_policy_with_older_weights_is_clipped_by_the_engines_log_probs_in_its_only_minibatch(
    rank: TrainerRank, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(directory, rounds={"policy": "BoundedAsync"}, algorithm={"importanceCap": None})
    with monkeypatch.context() as patch:
        patch.setattr(rank, "updates", Updates(spec, rank.model, None))
        metrics = rank.train(make_request(SAMPLES), fetch_from(SAMPLES)).metrics
    assert metrics["actor/pg_clipfrac"] > 0
    assert metrics["actor/ppo_kl"] == pytest.approx(metrics["mismatch_kl/k1"], rel=1e-4)
    assert metrics["rollout_corr/rollout_is_mean"] == 1.0, "the clipped ratio is the weight"


def test_engine_log_probs_equal_to_the_trainers_show_no_mismatch(rank: TrainerRank) -> None:
    exact = []
    for sample in SAMPLES:
        batch = build_batch([WeightedSegment(sample, 0.0, 1.0)], rank.device)
        exact.append(with_response(sample, logprobs=frozen_logprobs(rank.model, batch, platform=MACHINE).numpy()))
    metrics = rank.train(make_request(exact), fetch_from(exact)).metrics
    assert metrics["training/rollout_probs_diff_max"] < 1e-6
    assert abs(metrics["mismatch_kl/k1"]) < 1e-5
    assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["rollout_corr/rollout_is_ratio_fraction_high"] == 0.0


def test_a_step_makes_good_samples_likelier(rank: TrainerRank) -> None:
    good, bad = SAMPLES[1], SAMPLES[2]
    request = make_request([good, bad])
    signs = tuple(replace(entry, advantage=value) for entry, value in zip(request.samples, (1.0, -1.0), strict=True))
    before = [logprob(rank, sample) for sample in (good, bad)]
    for step in range(1, 4):
        rank.train(replace(request, step=step, samples=signs), fetch_from(SAMPLES))
    after = [logprob(rank, sample) for sample in (good, bad)]
    assert after[0] > before[0]
    assert after[1] < before[1]


def logprob(rank: TrainerRank, sample: GeneratedSample) -> float:
    """Of the whole text, at temperature 1."""
    return sum(rank.probe([*sample.prompt_ids.tolist(), *sample.token_ids.tolist()]))


def test_the_step_is_the_same_for_any_size_of_bins(rank: TrainerRank, tmp_path: Path) -> None:
    sharded.write(rank.snapshot(), tmp_path / "state")
    results = []
    for capacity in (32, 64, 4096):
        rank.restore(tmp_path / "state", described(tmp_path / "state"))
        rank.spec = rank.spec.model_copy(
            update={"trainer": rank.spec.trainer.model_copy(update={"max_tokens_per_bin": capacity})}
        )
        metrics = rank.train(make_request(SAMPLES), fetch_from(SAMPLES)).metrics
        results.append([metrics[name] for name in ("actor/pg_loss", "actor/grad_norm", "actor/entropy")])
    assert results[0] == pytest.approx(results[2], rel=1e-5)
    assert results[1] == pytest.approx(results[2], rel=1e-5)


def test_minibatches_are_off_policy_after_the_first(rank: TrainerRank) -> None:
    rank.spec = rank.spec.model_copy(update={"trainer": rank.spec.trainer.model_copy(update={"minibatches": 3})})
    before = rank.updates.optimizer.state[next(iter(rank.updates.parameters.values()))]["step"].item()
    metrics = rank.train(make_request(SAMPLES), fetch_from(SAMPLES)).metrics
    after = rank.updates.optimizer.state[next(iter(rank.updates.parameters.values()))]["step"].item()
    assert after - before == 3
    assert metrics["actor/ppo_kl"] != 0.0


def test_ten_steps_are_the_same_bits_as_five_a_restore_and_five(rank: TrainerRank, tmp_path: Path) -> None:
    batches = [make_samples(8, seed=step) for step in range(1, 11)]
    sharded.write(rank.snapshot(), tmp_path / "start")

    def run(first: int, last: int) -> None:
        for step in range(first, last + 1):
            rank.train(make_request(batches[step - 1], step=step), fetch_from(batches[step - 1]))

    run(1, 5)
    sharded.write(rank.snapshot(), tmp_path / "middle")
    run(6, 10)
    straight = weights(rank)
    rank.restore(tmp_path / "start", described(tmp_path / "start"))
    rank.restore(tmp_path / "middle", described(tmp_path / "middle"))
    run(6, 10)
    assert torch.equal(weights(rank), straight)
    rank.restore(tmp_path / "start", described(tmp_path / "start"))
    run(1, 10)
    assert torch.equal(weights(rank), straight)


def test_a_snapshot_does_not_change_with_the_next_step(rank: TrainerRank, tmp_path: Path) -> None:
    before = weights(rank)
    snapshot = rank.snapshot()
    rank.train(make_request(SAMPLES), fetch_from(SAMPLES))
    assert not torch.equal(weights(rank), before)
    sharded.write(snapshot, tmp_path / "state")
    rank.restore(tmp_path / "state", described(tmp_path / "state"))
    assert torch.equal(weights(rank), before)


def test_there_is_one_snapshot_of_twelve_bytes_for_each_parameter(rank: TrainerRank) -> None:
    """In the same memory each time; besides, the random state and two numbers."""
    kept = [{n: getattr(t, "_local_tensor", t).data_ptr() for n, t in rank.snapshot().items()} for _ in range(2)]
    assert kept[0] == kept[1]
    size = sum(tensor.nbytes for tensor in rank.snapshot().values())
    assert 0 <= size - 12 * parameter_count(rank.model) < 10_000


def test_weights_have_their_hugging_face_names_and_tied_ones_come_once(rank: TrainerRank, directory: Path) -> None:
    published = dict(rank.weights())
    stored = load_file(directory / "model.safetensors")
    assert published.keys() == stored.keys()
    assert all(torch.equal(published[name], stored[name]) for name in stored)


def test_a_restore_is_seen_by_passes_without_gradient(rank: TrainerRank, tmp_path: Path) -> None:
    sharded.write(rank.snapshot(), tmp_path / "state")
    before = rank.probe([10, 20, 30])
    rank.train(make_request(SAMPLES), fetch_from(SAMPLES))
    assert rank.probe([10, 20, 30]) != before
    rank.restore(tmp_path / "state", described(tmp_path / "state"))
    assert rank.probe([10, 20, 30]) == before


def test_a_missing_sample_changes_nothing(rank: TrainerRank) -> None:
    before = weights(rank)
    with pytest.raises(KeyError):
        rank.train(make_request(SAMPLES), fetch_from(SAMPLES[1:]))
    assert torch.equal(weights(rank), before)


def test_a_sample_longer_than_a_bin_names_field_and_cure(rank: TrainerRank) -> None:
    long = make_samples(1, longest=1)[0]
    long = with_response(long, token_ids=np.full(80, 7, np.int32), logprobs=np.zeros(80, np.float32))
    with pytest.raises(SpecProblem, match="raise it") as problem:
        rank.train(make_request([long]), fetch_from([long]))
    assert problem.value.field == "spec.trainer.maxTokensPerBin"


def with_bad_sample(request: TrainRequest, position: int, advantage: float = math.inf) -> TrainRequest:
    """The gradient of its minibatch is not finite."""
    samples = [replace(one, advantage=advantage) if i == position else one for i, one in enumerate(request.samples)]
    return replace(request, samples=tuple(samples))


def updates_made(rank: TrainerRank) -> float:
    return rank.updates.optimizer.state[next(iter(rank.updates.parameters.values()))]["step"].item()


@pytest.mark.parametrize("advantage", [math.inf, math.nan])
def test_a_gradient_that_is_not_finite_is_never_applied(rank: TrainerRank, tmp_path: Path, advantage: float) -> None:
    """The weights stay, and the next step is what it would have been without it."""
    sharded.write(rank.snapshot(), tmp_path / "start")
    before = weights(rank)
    report = rank.train(with_bad_sample(make_request(SAMPLES), 0, advantage), fetch_from(SAMPLES))
    assert (report.minibatches, report.skipped, report.trained) == (1, 1, False)
    assert report.metrics["training/skipped_minibatches"] == 1.0
    assert all(math.isfinite(value) for value in report.metrics.values())
    assert torch.equal(weights(rank), before)
    rank.train(make_request(SAMPLES, step=2), fetch_from(SAMPLES))
    after = weights(rank)
    rank.restore(tmp_path / "start", described(tmp_path / "start"))
    rank.train(make_request(SAMPLES, step=2), fetch_from(SAMPLES))
    assert torch.equal(weights(rank), after)


def test_minibatches_beside_a_skipped_one_are_trained(rank: TrainerRank) -> None:
    rank.spec = rank.spec.model_copy(update={"trainer": rank.spec.trainer.model_copy(update={"minibatches": 3})})
    before, made = weights(rank), updates_made(rank)
    report = rank.train(with_bad_sample(make_request(SAMPLES), 4), fetch_from(SAMPLES))
    assert (report.minibatches, report.skipped, report.trained) == (3, 1, True)
    assert updates_made(rank) - made == 2
    assert not torch.equal(weights(rank), before)
    assert all(math.isfinite(value) for value in report.metrics.values())
    assert report.metrics["actor/loss_tokens"] == sum(len(SAMPLES[i].token_ids) for i in (0, 1, 2, 3, 8)), (
        "all but those of the bad one's group"
    )


def test_a_gradient_that_overflows_is_computed_again_at_half_the_scale(rank: TrainerRank, tmp_path: Path) -> None:
    """The update is that of any other scale: powers of two change no digit."""
    sharded.write(rank.snapshot(), tmp_path / "start")
    rank.train(make_request(SAMPLES), fetch_from(SAMPLES))
    expected = weights(rank)
    rank.restore(tmp_path / "start", described(tmp_path / "start"))
    rank.updates.loss_scale = LossScale(2.0**72, 5)
    report = rank.train(make_request(SAMPLES), fetch_from(SAMPLES))
    assert report.skipped == 0
    assert 2.0**62 <= rank.updates.loss_scale.value < 2.0**72
    assert rank.updates.loss_scale.good_updates == 1
    assert report.metrics["actor/loss_scale"] == rank.updates.loss_scale.value
    torch.testing.assert_close(weights(rank), expected, rtol=1e-6, atol=1e-9)


def test_a_minibatch_is_skipped_after_ten_halvings(rank: TrainerRank, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[float] = []
    accumulate = rank.updates.accumulate

    def accumulate_and_note(*arguments: object) -> object:
        tried.append(rank.updates.loss_scale.value)
        return accumulate(*arguments)

    monkeypatch.setattr(rank.updates, "accumulate", accumulate_and_note)
    rank.updates.loss_scale = LossScale(2.0**16, 5)
    assert rank.train(with_bad_sample(make_request(SAMPLES), 0), fetch_from(SAMPLES)).skipped == 1
    assert tried == [2.0**exponent for exponent in range(16, 5, -1)]
    assert rank.updates.loss_scale == LossScale(2.0**16, 0)


def test_weights_that_are_not_finite_fail_the_job(rank: TrainerRank, monkeypatch: pytest.MonkeyPatch) -> None:
    name, parameter = list(rank.updates.parameters.items())[3]
    step = rank.updates.optimizer.step

    def step_and_break() -> None:
        step()
        local(parameter).data.view(-1)[-1] = math.nan

    monkeypatch.setattr(rank.updates.optimizer, "step", step_and_break)
    with pytest.raises(SpecProblem, match=f"the first is {name}\\) have values after step 1") as problem:
        rank.train(make_request(SAMPLES), fetch_from(SAMPLES))
    assert (problem.value.reason, problem.value.fatal) == (Reason.WEIGHTS_NOT_FINITE, True)
    assert problem.value.field == "spec.trainer.optimizer.learningRate"


def test_weights_that_engines_would_get_as_infinite_are_not_finite(rank: TrainerRank) -> None:
    with torch.no_grad():
        local(next(iter(rank.updates.parameters.values()))).view(-1)[0] = -65520.0
    found = {dtype: len(not_finite(rank.updates.parameters, dtype)) for dtype in (torch.float16, torch.bfloat16)}
    assert found == {torch.float16: 1, torch.bfloat16: 0}


def test_a_checkpoint_with_weights_that_are_not_finite_is_refused(rank: TrainerRank, tmp_path: Path) -> None:
    snapshot = rank.snapshot()
    local(next(value for name, value in snapshot.items() if name.startswith("model."))).view(-1)[0] = math.nan
    sharded.write(snapshot, tmp_path / "state")
    with pytest.raises(SpecProblem, match="in the checkpoint") as problem:
        rank.restore(tmp_path / "state", described(tmp_path / "state"))
    assert (problem.value.reason, problem.value.field) == (Reason.WEIGHTS_NOT_FINITE, "spec.checkpoint.resumeFrom")


def test_samples_cut_by_max_tokens_can_be_left_out(rank: TrainerRank) -> None:
    rank.updates.algorithm = replace(rank.updates.algorithm, mask_truncated=True)
    samples = [replace(SAMPLES[0], finish_reason=FinishReason.LENGTH), *SAMPLES[1:]]
    try:
        metrics = rank.train(make_request(samples), fetch_from(samples)).metrics
    finally:
        rank.updates.algorithm = replace(rank.updates.algorithm, mask_truncated=False)
    assert metrics["actor/loss_tokens"] == sum(len(sample.token_ids) for sample in SAMPLES[1:])


def test_the_probe_is_the_models_own_log_probs(rank: TrainerRank, directory: Path) -> None:
    ids: Sequence[int] = [10, 20, 30, 40]
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    expected = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)[[0, 1, 2], ids[1:]]
    assert rank.probe(ids) == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_stored_sample_of_another_size_than_the_driver_knows_is_not_trained(rank: TrainerRank) -> None:
    before = weights(rank)
    shorter = with_response(SAMPLES[0], token_ids=SAMPLES[0].token_ids[:-1], logprobs=SAMPLES[0].logprobs[:-1])
    with pytest.raises(RuntimeError, match=str(SAMPLES[0].id)):
        rank.train(make_request(SAMPLES), fetch_from([shorter, *SAMPLES[1:]]))
    assert torch.equal(weights(rank), before)


def test_samples_are_fetched_once(rank: TrainerRank) -> None:
    calls: list[int] = []

    def fetch(ids: Sequence[SampleId]) -> list[GeneratedSample]:
        calls.append(len(ids))
        return fetch_from(SAMPLES)(ids)

    rank.train(make_request(SAMPLES), fetch)
    assert calls == [len(SAMPLES)]
