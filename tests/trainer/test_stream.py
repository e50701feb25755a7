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
from tests.support.tiny_model import build_tiny_model
from tests.trainer.trainer_world import fetch_from, full, make_request, make_samples, make_spec, only_rank, run_ranks

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
    ends = sorted(random.sample(range(1, groups + 1), random.randint(1, 12)))
    return [order[start:end] for start, end in zip([0, *ends], [*ends, groups], strict=True)]


def requests(whole: TrainRequest, cut: Cut) -> tuple[list[ChunkRequest], TrainRequest]:
    """The chunks of a step over `whole`, and the request for what is left."""
    parts = [tuple(sample for sample in whole.samples if sample.id.row in groups) for groups in map(set, cut)]
    assert sorted(sample.id for part in parts for sample in part) == [sample.id for sample in whole.samples]
    chunks = [
        ChunkRequest(whole.step, number, part, whole.denominator) for number, part in enumerate(parts[:-1], start=1)
    ]
    return chunks, replace(whole, samples=parts[-1], chunks=len(chunks))


def stream(rank: TrainerRank, whole: TrainRequest, cut: Cut, samples: Sequence[GeneratedSample]) -> TrainReport:
    chunks, left = requests(whole, cut)
    for chunk in chunks:
        report = rank.accumulate(chunk, fetch_from(samples))
        assert (report.number, report.tokens) == (chunk.number, sum(sample.size.tokens for sample in chunk.samples))
        assert report.seconds > 0
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
