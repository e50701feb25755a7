"""Two ranks in Float16 skip the same minibatches and keep the same loss scale. Real processes, real gloo."""

import json
import math
import shutil
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from longboat_crds.model import DType
from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.checkpoint import sharded
from longboat_runtime.trainer.loss_scale import LossScale
from longboat_runtime.trainer.protocol import TrainReport
from longboat_runtime.trainer.rank import TrainerRank
from tests.support.checkpoints import described
from tests.support.tiny_model import build_tiny_model
from tests.trainer.trainer_world import fetch_from, local, make_request, make_samples, make_spec, run_ranks

SAMPLES = make_samples(8)
MINIBATCHES = 2
# Of the one group and the other, and so of one minibatch and the other.
IN_ONE, IN_OTHER = 1, 6


def train(rank: TrainerRank, step: int, bad: Collection[int] = ()) -> TrainReport:
    """A step; the gradient of `bad` samples is not finite."""
    request = make_request(SAMPLES, step=step)
    samples = [replace(one, advantage=math.nan) if i in bad else one for i, one in enumerate(request.samples)]
    return rank.train(replace(request, samples=tuple(samples)), fetch_from(SAMPLES))


def shards(rank: TrainerRank) -> Tensor:
    return torch.cat([local(parameter.detach()).flatten() for parameter in rank.updates.parameters.values()])


def scale(rank: TrainerRank) -> tuple[float, int]:
    return rank.updates.loss_scale.value, rank.updates.loss_scale.good_updates


def train_with_one_infinite_value(rank: TrainerRank, step: int) -> TrainReport:
    """A step; of the first minibatch's gradient one value overflows, in the shard of rank 1. Other ranks know of it by the norm alone."""
    before, accumulate = rank.updates.loss_scale, rank.updates.accumulate
    rank.updates.loss_scale = replace(before, adapts=False)
    minibatches = iter(range(MINIBATCHES))

    def accumulate_and_overflow(*arguments: Any) -> Any:
        sums = accumulate(*arguments)
        if next(minibatches) == 0 and rank.rank == 1:
            gradients = [local(parameter.grad) for parameter in rank.updates.parameters.values()]
            next(gradient for gradient in gradients if gradient.numel()).view(-1)[0] = math.inf
        return sums

    rank.updates.accumulate = accumulate_and_overflow
    try:
        return train(rank, step)
    finally:
        rank.updates.accumulate, rank.updates.loss_scale = accumulate, before


def work(rank: TrainerRank, directory: Path) -> None:
    """Steps with minibatches that are skipped, a checkpoint with a step after it, twice, and a model that can't be trained."""
    record: dict[str, Any] = {"rank": rank.rank}
    start = shards(rank)
    record["good"] = train(rank, 1).skipped
    record["scale of good"] = scale(rank)
    trained = shards(rank)
    record["changed by good"] = not torch.equal(start, trained)
    record["both"] = train(rank, 2, [IN_ONE, IN_OTHER]).skipped
    record["changed by both"] = not torch.equal(trained, shards(rank))
    record["scale of both"] = scale(rank)
    record["one"] = train(rank, 3, [IN_ONE]).skipped
    record["changed by one"] = not torch.equal(trained, shards(rank))
    record["scale of one"] = scale(rank)
    record["one value"] = train_with_one_infinite_value(rank, 3).skipped
    record["saved"] = scale(rank)
    sharded.write(rank.snapshot(), directory / "checkpoint")
    train(rank, 4)
    record["after"], weights = scale(rank), shards(rank)
    rank.updates.loss_scale = LossScale(2.0**3, 77)
    rank.restore(directory / "checkpoint", described(directory / "checkpoint"))
    record["restored"] = scale(rank)
    train(rank, 4)
    record["again"], record["same bits"] = scale(rank), torch.equal(weights, shards(rank))
    rank.spec = rank.spec.model_copy(
        update={"model": rank.spec.model.model_copy(update={"path": str(directory / "nan")})}
    )
    with pytest.raises(SpecProblem) as problem:
        rank.load()
    record["problem"] = (problem.value.reason, problem.value.field, problem.value.message)
    (directory / f"rank-{rank.rank}.json").write_text(json.dumps(record))


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank saw."""
    model, directory = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("two")
    build_tiny_model(model, hidden=32)
    shutil.copytree(model, directory / "nan")
    tensors = load_file(model / "model.safetensors")
    tensors["model.norm.weight"][-1] = math.nan
    save_file(tensors, directory / "nan" / "model.safetensors", metadata={"format": "pt"})
    spec = make_spec(model, trainer={"minibatches": MINIBATCHES, "maxTokensPerBin": 64})
    spec = spec.model_copy(update={"model": spec.model.model_copy(update={"dtype": DType.FLOAT16})})
    run_ranks(2, work, spec, directory)
    return [json.loads((directory / f"rank-{rank}.json").read_text()) for rank in range(2)]


def test_ranks_skip_the_same_minibatches(records: list[dict[str, Any]]) -> None:
    """A bad sample is in a bin of one rank alone, a bad value in the shard of one."""
    for record in records:
        skipped = [record[name] for name in ("good", "one", "both", "one value")]
        assert skipped == [0, 1, MINIBATCHES, 1], record["rank"]
        assert record["changed by good"]
        assert record["changed by one"], "by the minibatch that was not skipped"
        assert not record["changed by both"]


def test_ranks_have_the_same_loss_scale(records: list[dict[str, Any]]) -> None:
    for name in ("scale of good", "scale of both", "scale of one", "after"):
        assert records[0][name] == records[1][name]
    value, good = records[0]["scale of good"]
    assert good > 0
    assert records[0]["scale of both"] == [value, 0], "no lower scale would have helped"
    assert records[0]["scale of one"][0] == value


def test_the_loss_scale_is_in_the_checkpoint(records: list[dict[str, Any]]) -> None:
    for record in records:
        assert record["restored"] == record["saved"]
        assert record["again"] == record["after"]
        assert record["same bits"]


def test_a_model_whose_weights_are_not_finite_is_refused_on_all_ranks(records: list[dict[str, Any]]) -> None:
    """The value is in the shard of one rank alone."""
    for record in records:
        reason, field, message = record["problem"]
        assert (reason, field) == (Reason.WEIGHTS_NOT_FINITE, "spec.model.path")
        assert "(the first is model.norm.weight) have values in the files" in message
