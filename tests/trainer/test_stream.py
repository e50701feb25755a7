"""A step whose groups are accumulated chunk by chunk is the step of the whole batch, on one rank and on several."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from longboat_runtime.checkpoint import sharded
from longboat_runtime.samples import FinishReason, GeneratedSample
from longboat_runtime.trainer.errors import NotStreamed
from longboat_runtime.trainer.loss_scale import LossScale
from longboat_runtime.trainer.protocol import ChunkRequest, TrainReport, TrainRequest
from longboat_runtime.trainer.rank import TrainerRank
from longboat_runtime.trainer.updates import Updates
from tests.support.checkpoints import described
from tests.support.tiny_model import build_tiny_model
from tests.trainer.trainer_world import (
    fetch_from,
    full,
    make_request,
    make_samples,
    make_spec,
    only_rank,
    put_back,
    run_ranks,
)

GROUP_SIZE = 2
MAX_TOKENS = 24
BOUND = 1e-5
# A cut is the groups of each chunk; those of the last part are trained with the step.
Cut = Sequence[Sequence[int]]
Case = tuple[str, float, bool]

CASES: list[Case] = list(product(("SequenceMean", "SequenceSum", "TokenMean"), (0.0, 0.1), (False, True)))
FEW: list[Case] = [("SequenceMean", 0.1, True), ("SequenceSum", 0.0, False), ("TokenMean", 0.1, True)]


def streamed_samples(groups: int) -> list[GeneratedSample]:
    """Some are truncated; of one group all are."""
    samples = make_samples(groups * GROUP_SIZE, longest=MAX_TOKENS, group_size=GROUP_SIZE)
    return [
        replace(sample, finish_reason=FinishReason.LENGTH) if sample.id.row in (3, *range(5, groups, 7)) else sample
        for sample in samples
    ]


def cuts(groups: int) -> dict[str, Cut]:
    order = list(range(groups))
    Random(1).shuffle(order)
    quarter = groups // 4
    return {
        "four parts": [order[i : i + quarter] for i in range(0, groups, quarter)],
        "one group each": [[group] for group in order],
        "nothing left": [order[: groups // 2], order[groups // 2 :], []],
        "random": random_cut(groups, Random(2)),
    }


def random_cut(groups: int, random: Random) -> Cut:
    order = list(range(groups))
    random.shuffle(order)
    ends = sorted(random.sample(range(1, groups + 1), random.randint(1, min(12, groups))))
    return [order[start:end] for start, end in zip([0, *ends], [*ends, groups], strict=True)]


def requests(whole: TrainRequest, cut: Cut) -> tuple[list[ChunkRequest], TrainRequest]:
    """The chunks of a step over `whole`, and the request for what is left."""
    parts = [tuple(sample for sample in whole.samples if sample.id.row in groups) for groups in map(set, cut)]
    assert sorted(sample.id for part in parts for sample in part) == [sample.id for sample in whole.samples]
    chunks = [ChunkRequest(whole.step, part, whole.denominator, chunks) for chunks, part in enumerate(parts[:-1])]
    return chunks, replace(whole, samples=parts[-1], chunks=len(chunks))


def stream(rank: TrainerRank, whole: TrainRequest, cut: Cut, samples: Sequence[GeneratedSample]) -> TrainReport:
    chunks, left = requests(whole, cut)
    for chunk in chunks:
        assert rank.accumulate(chunk, fetch_from(samples)) > 0
    return rank.train(left, fetch_from(samples))


def sections(case: Case) -> dict[str, dict[str, Any]]:
    aggregation, kl, masked = case
    return {
        "algorithm": {
            "groupSize": GROUP_SIZE,
            "aggregation": aggregation,
            "klCoefficient": kl,
            "maskTruncated": masked,
            "importanceCap": 2.0,
        },
        "rollout": {"sampling": {"maxTokens": MAX_TOKENS}},
        "trainer": {"maxTokensPerBin": 256, "optimizer": {"learningRate": 1e-3, "maxGradNorm": 1e6}},
    }


def gradient(rank: TrainerRank, train: Callable[[], TrainReport]) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The gradient that the optimizer gets in a step, which isn't made, and the step's metrics."""
    gradients: dict[str, Tensor] = {}

    def copy() -> None:
        gradients.update({name: full(weight.grad).double().clone() for name, weight in rank.updates.parameters.items()})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank.updates.optimizer, "step", copy)
        metrics = train().metrics
    return gradients, {name: value for name, value in metrics.items() if not name.startswith("timing_s/")}


def errors(result: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """Norm of the difference over norm, over all and of the worst tensor."""

    def relative(names: Iterable[str]) -> float:
        difference = sum((result[name] - expected[name]).square().sum() for name in names)
        return math.sqrt(difference / sum(expected[name].square().sum() for name in names))

    return {"all": relative(list(expected)), "tensor": max(relative([name]) for name in expected)}


def record_errors(
    rank: TrainerRank, directory: Path, *, cases: Sequence[Case], groups: int, random_cuts: int = 0
) -> None:
    """For each case and cut: how far the streamed gradient and metrics are from those of the batch."""
    samples = streamed_samples(groups)
    model, reference = rank.model, rank.updates.reference
    # So that the starting model is another.
    rank.train(make_request(samples), fetch_from(samples))
    whole, found = make_request(samples, step=2), {}
    for case in cases:
        rank.spec = make_spec(Path(rank.spec.model.path), **sections(case))
        rank.updates = Updates(rank.spec, model, reference if case[1] else None)
        expected, metrics = gradient(rank, partial(rank.train, whole, fetch_from(samples)))
        random = Random(3)
        for name, cut in (cuts(groups) | {str(i): random_cut(groups, random) for i in range(random_cuts)}).items():
            result, streamed = gradient(rank, partial(stream, rank, whole, cut, samples))
            assert streamed.keys() == metrics.keys()
            off = {key: abs(streamed[key] - value) / max(1.0, abs(value)) for key, value in metrics.items()}
            found[f"{case}, {name}"] = errors(result, expected) | {"metrics": max(off.values())}
    if rank.rank == 0:
        (directory / "errors.json").write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("ranks", "tied", "cases", "groups", "random_cuts"),
    [
        (1, True, FEW, 8, 0),
        *(
            pytest.param(ranks, tied, CASES, 64, 0, marks=pytest.mark.extended)
            for ranks, tied in product((1, 4), (True, False))
        ),
        pytest.param(1, True, [("TokenMean", 0.1, True)], 64, 200, marks=pytest.mark.extended),
    ],
)
def test_the_streamed_gradient_is_that_of_the_batch(
    ranks: int, tied: bool, cases: list[Case], groups: int, random_cuts: int, tmp_path: Path
) -> None:
    model = build_tiny_model(tmp_path / "model", hidden=32, tied=tied)
    work = partial(record_errors, cases=cases, groups=groups, random_cuts=random_cuts)
    spec = make_spec(model, **sections(("TokenMean", 0.1, False)))
    if ranks == 1:
        with only_rank(spec) as rank:
            work(rank, tmp_path)
    else:
        run_ranks(ranks, work, spec, tmp_path)
    found = json.loads((tmp_path / "errors.json").read_text())
    assert len(found) == len(cases) * (4 + random_cuts)
    worst = {kind: max(errors[kind] for errors in found.values()) for kind in ("all", "tensor", "metrics")}
    print(f"{ranks=} {tied=} {random_cuts=}: {worst}")
    assert max(worst.values()) <= BOUND, {case: kinds for case, kinds in found.items() if max(kinds.values()) > BOUND}


SAMPLES = streamed_samples(8)
OTHERS = make_samples(16, seed=1, longest=MAX_TOKENS, group_size=GROUP_SIZE)
CUT: Cut = [[5, 2], [0, 1, 7], [3, 4, 6]]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainerRank]:
    model = build_tiny_model(tmp_path_factory.mktemp("model"), hidden=32)
    with only_rank(make_spec(model, **sections(("TokenMean", 0.0, True)))) as rank:
        yield rank


@pytest.fixture
def rank(loaded: TrainerRank, tmp_path: Path) -> Iterator[TrainerRank]:
    with put_back(loaded, tmp_path / "before"):
        yield loaded


def weights(rank: TrainerRank) -> Tensor:
    return torch.cat([full(weight.detach()).flatten() for weight in rank.updates.parameters.values()])


def after(rank: TrainerRank, directory: Path, work: Callable[[], object]) -> Tensor:
    """The weights that `work` leaves; the rank is put back into the state it was in."""
    work()
    result = weights(rank)
    rank.restore(directory / "before", described(directory / "before"))
    return result


def test_a_streamed_step_changes_weights_as_the_step_of_the_batch(rank: TrainerRank, tmp_path: Path) -> None:
    request = make_request(SAMPLES)
    expected = after(rank, tmp_path, partial(rank.train, request, fetch_from(SAMPLES)))
    result = after(rank, tmp_path, partial(stream, rank, request, CUT, SAMPLES))
    assert 0 < (result - expected).norm() <= BOUND * expected.norm()


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "GSPO", "clipAgainst": "Behaviour", "clipLow": 0.03, "clipHigh": 0.03},
        {"name": "CISPO", "clipAgainst": "Behaviour", "clipHigh": 0.2},
        {
            "name": "CISPO",
            "clipAgainst": "Behaviour",
            "clipHigh": 0.1,
            "entropyCoefficient": 0.1,
            "aggregation": "SequenceMean",
        },
        {"entropyCoefficient": 0.1, "aggregation": "TokenMean"},
    ],
)
def test_other_losses_are_streamed_too(
    rank: TrainerRank, algorithm: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    knobs = sections(("TokenMean", 0.0, True)) | {
        "algorithm": {"groupSize": GROUP_SIZE, "importanceCap": None, **algorithm}
    }
    monkeypatch.setattr(rank, "spec", make_spec(Path(rank.spec.model.path), **knobs))
    monkeypatch.setattr(rank, "updates", Updates(rank.spec, rank.model, None))
    request = make_request(SAMPLES)
    expected, metrics = gradient(rank, partial(rank.train, request, fetch_from(SAMPLES)))
    for cut in cuts(8).values():
        result, streamed = gradient(rank, partial(stream, rank, request, cut, SAMPLES))
        assert max(errors(result, expected).values()) <= BOUND
        assert streamed == pytest.approx(metrics, rel=BOUND, abs=BOUND)
    if "clipAgainst" in algorithm:
        assert 0 < metrics["actor/pg_clipfrac"] < 1


def test_a_step_of_which_nothing_is_left_is_that_of_its_chunks(rank: TrainerRank, tmp_path: Path) -> None:
    request = make_request(SAMPLES)
    expected = after(rank, tmp_path, partial(rank.train, request, fetch_from(SAMPLES)))
    result = after(rank, tmp_path, partial(stream, rank, request, [*CUT, []], SAMPLES))
    assert 0 < (result - expected).norm() <= BOUND * expected.norm()


def test_a_streamed_step_repeats_bit_for_bit(rank: TrainerRank, tmp_path: Path) -> None:
    request = make_request(SAMPLES)
    first, second = (after(rank, tmp_path, partial(stream, rank, request, CUT, SAMPLES)) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(("aggregation", "times"), [("SequenceMean", 3), ("TokenMean", 10)])
def test_ten_streamed_steps_are_as_near_as_steps_with_other_bins(
    rank: TrainerRank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aggregation: str, times: int
) -> None:
    """Nearly: with TokenMean a chunk's tokens have other weights than the batch's, so that each of them is rounded in another way.

    AdamW's epsilon is above what rounding leaves of a gradient that is nearly 0.
    """
    knobs = sections((aggregation, 0.0, True))
    knobs["trainer"]["optimizer"]["epsilon"] = 1e-6
    rank.spec = make_spec(Path(rank.spec.model.path), **knobs)
    monkeypatch.setattr(rank, "updates", Updates(rank.spec, rank.model, None))
    batches = [make_samples(16, seed=seed, longest=MAX_TOKENS, group_size=GROUP_SIZE) for seed in range(10)]

    def steps(capacity: int, *, streamed: bool) -> Tensor:
        def work() -> None:
            trainer = rank.spec.trainer.model_copy(update={"max_tokens_per_bin": capacity})
            rank.spec = rank.spec.model_copy(update={"trainer": trainer})
            for step, samples in enumerate(batches, start=1):
                request = make_request(samples, step=step)
                if streamed:
                    stream(rank, request, random_cut(8, Random(step)), samples)
                else:
                    rank.train(request, fetch_from(samples))

        return after(rank, tmp_path, work)

    expected = steps(256, streamed=False)
    spread = (steps(64, streamed=False) - expected).norm()
    assert 0 < (steps(256, streamed=True) - expected).norm() <= times * spread


def test_nothing_is_trained_on_chunks_that_are_not_the_steps(rank: TrainerRank, tmp_path: Path) -> None:
    """What is held stays held, and the right step is trained on it."""
    request = make_request(SAMPLES)
    expected = after(rank, tmp_path, partial(stream, rank, request, CUT, SAMPLES))
    (first, second), left = requests(request, CUT)
    with pytest.raises(NotStreamed, match="rank 0 holds no chunks, not the first 1 of step 1"):
        rank.accumulate(second, fetch_from(SAMPLES))
    rank.accumulate(first, fetch_from(SAMPLES))
    with pytest.raises(NotStreamed, match="rank 0 holds 1 chunks of step 1, not the first 2 of step 1"):
        rank.train(left, fetch_from(SAMPLES))
    with pytest.raises(NotStreamed):
        rank.accumulate(replace(second, step=2), fetch_from(SAMPLES))
    rank.accumulate(second, fetch_from(SAMPLES))
    with pytest.raises(NotStreamed):
        rank.train(replace(left, step=2), fetch_from(SAMPLES))
    rank.train(left, fetch_from(SAMPLES))
    assert torch.equal(weights(rank), expected)
    with pytest.raises(NotStreamed):
        rank.train(left, fetch_from(SAMPLES))


@pytest.mark.parametrize("abandoned", ["discarded", "restored", "left", "replaced"])
def test_chunks_that_were_abandoned_leave_nothing(rank: TrainerRank, tmp_path: Path, abandoned: str) -> None:
    request = make_request(SAMPLES, step=2)
    expected = after(rank, tmp_path, partial(rank.train, request, fetch_from(SAMPLES)))
    streamed = after(rank, tmp_path, partial(stream, rank, request, CUT, SAMPLES))
    for chunk in requests(make_request(OTHERS, step=1), CUT)[0]:
        rank.accumulate(chunk, fetch_from(OTHERS))
    match abandoned:
        case "discarded":
            rank.updates.discard()
            assert all(weight.grad is None for weight in rank.updates.parameters.values())
        case "restored":
            rank.restore(tmp_path / "before", described(tmp_path / "before"))
            assert all(weight.grad is None for weight in rank.updates.parameters.values())
        case "replaced":
            stream(rank, request, CUT, SAMPLES)
            assert torch.equal(weights(rank), streamed)
            return
    rank.train(request, fetch_from(SAMPLES))
    assert torch.equal(weights(rank), expected)


def test_a_publication_and_a_snapshot_between_chunks_change_nothing(rank: TrainerRank, tmp_path: Path) -> None:
    request = make_request(SAMPLES)
    expected = after(rank, tmp_path, partial(stream, rank, request, CUT, SAMPLES))
    before = weights(rank)
    chunks, left = requests(request, CUT)
    for chunk in chunks:
        rank.accumulate(chunk, fetch_from(SAMPLES))
        rank.probe([10, 20, 30])
        published = dict(rank.weights())
        sharded.write(rank.snapshot(), tmp_path / str(chunk.chunks))
    assert torch.equal(torch.cat([weight.flatten() for weight in published.values()]), before)
    rank.train(left, fetch_from(SAMPLES))
    assert torch.equal(weights(rank), expected)


def test_a_chunk_whose_sample_is_gone_adds_nothing(rank: TrainerRank, tmp_path: Path) -> None:
    request = make_request(SAMPLES)
    expected = after(rank, tmp_path, partial(stream, rank, request, CUT, SAMPLES))
    (first, second), left = requests(request, CUT)
    for chunk in (first, second):
        gone = chunk.samples[-1].id
        with pytest.raises(KeyError):
            rank.accumulate(chunk, fetch_from([sample for sample in SAMPLES if sample.id != gone]))
        rank.accumulate(chunk, fetch_from(SAMPLES))
    rank.train(left, fetch_from(SAMPLES))
    assert torch.equal(weights(rank), expected)


def test_a_chunk_that_failed_half_way_ends_the_chunks(
    rank: TrainerRank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = make_request(SAMPLES)
    expected = after(rank, tmp_path, partial(rank.train, request, fetch_from(SAMPLES)))
    (first, second), left = requests(request, CUT)
    rank.accumulate(first, fetch_from(SAMPLES))
    accumulate = rank.updates.accumulate

    def fail(*arguments: Any) -> None:
        accumulate(*arguments)
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(rank.updates, "accumulate", fail)
        with pytest.raises(RuntimeError):
            rank.accumulate(second, fetch_from(SAMPLES))
    with pytest.raises(NotStreamed):
        rank.accumulate(second, fetch_from(SAMPLES))
    with pytest.raises(NotStreamed):
        rank.train(left, fetch_from(SAMPLES))
    rank.train(request, fetch_from(SAMPLES))
    assert torch.equal(weights(rank), expected)


@pytest.mark.parametrize("part", [0, -1])
def test_a_gradient_that_is_not_finite_is_skipped_with_its_chunks(rank: TrainerRank, tmp_path: Path, part: int) -> None:
    request, following = make_request(SAMPLES), make_request(OTHERS, step=2)
    expected = after(rank, tmp_path, partial(rank.train, following, fetch_from(OTHERS)))
    before = weights(rank)
    bad = [
        replace(sample, advantage=math.nan) if sample.id.row == CUT[part][0] else sample for sample in request.samples
    ]
    report = stream(rank, replace(request, samples=tuple(bad)), CUT, SAMPLES)
    assert (report.minibatches, report.skipped) == (1, 1)
    assert torch.equal(weights(rank), before)
    rank.train(following, fetch_from(OTHERS))
    assert torch.equal(weights(rank), expected)


def test_a_streamed_gradient_that_overflows_is_computed_again_from_the_whole_batch(
    rank: TrainerRank, tmp_path: Path
) -> None:
    request, overflowing = make_request(SAMPLES), LossScale(2.0**70, 5)
    rank.updates.loss_scale = overflowing
    expected = after(rank, tmp_path, partial(rank.train, request, fetch_from(SAMPLES)))
    before = weights(rank)
    rank.updates.loss_scale = overflowing
    with pytest.raises(NotStreamed, match="not finite at the loss scale"):
        stream(rank, request, CUT, SAMPLES)
    assert torch.equal(weights(rank), before)
    assert rank.updates.loss_scale == overflowing
    assert rank.train(request, fetch_from(SAMPLES)).skipped == 0
    assert torch.equal(weights(rank), expected)


def test_a_streamed_step_counts_for_the_loss_scale_as_any_other(rank: TrainerRank, tmp_path: Path) -> None:
    expected = after(rank, tmp_path, partial(stream, rank, make_request(SAMPLES), CUT, SAMPLES))
    rank.updates.loss_scale = LossScale(2.0**10, 5)
    report = stream(rank, make_request(SAMPLES), CUT, SAMPLES)
    assert report.metrics["actor/loss_scale"] == 2.0**10
    assert rank.updates.loss_scale.good_updates == 6
    torch.testing.assert_close(weights(rank), expected, rtol=1e-6, atol=1e-9)


def disagree(rank: TrainerRank, directory: Path) -> None:
    """Chunks that one rank has lost, and a sample that one rank can't get."""
    request = make_request(SAMPLES)
    chunks, left = requests(request, CUT)
    before = weights(rank)
    sharded.write(rank.snapshot(), directory / "before")
    rank.accumulate(chunks[0], fetch_from(SAMPLES))
    if rank.rank == 1:
        rank.updates.discard()
    for call in (partial(rank.accumulate, chunks[1]), partial(rank.train, replace(left, chunks=1))):
        with pytest.raises(NotStreamed, match="rank 1 holds no chunks"):
            call(fetch_from(SAMPLES))
    assert torch.equal(weights(rank), before)
    expected = after(rank, directory, partial(stream, rank, request, CUT, SAMPLES))
    rank.accumulate(chunks[0], fetch_from(SAMPLES))
    with pytest.raises(KeyError):
        rank.accumulate(chunks[1], fetch_from(SAMPLES if rank.rank == 0 else []))
    rank.accumulate(chunks[1], fetch_from(SAMPLES))
    rank.train(left, fetch_from(SAMPLES))
    assert torch.equal(weights(rank), expected)
    (directory / f"rank-{rank.rank}-done").touch()


def test_ranks_refuse_together_what_one_of_them_cannot_build_on(tmp_path: Path) -> None:
    model = build_tiny_model(tmp_path / "model", hidden=32)
    run_ranks(2, disagree, make_spec(model, **sections(("TokenMean", 0.0, True))), tmp_path)
    assert len(list(tmp_path.glob("rank-*-done"))) == 2
