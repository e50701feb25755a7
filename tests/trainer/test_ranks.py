"""Two ranks compute what one does. Real processes, real gloo."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from longboat_crds.job import RLJobSpec
from longboat_runtime.checkpoint import sharded
from longboat_runtime.trainer.forward import frozen_logprobs
from longboat_runtime.trainer.machine import MACHINE
from longboat_runtime.trainer.rank import TrainerRank
from tests.support.architectures import tiny_config
from tests.support.checkpoints import described
from tests.support.tiny_model import save_random_model
from tests.trainer.trainer_world import fetch_from, full, make_request, make_samples, make_spec, only_rank, run_ranks

SAMPLES = make_samples(6)
MORE = make_samples(5, seed=1)
PROBE = (10, 20, 30, 40)
SECTIONS = {"algorithm": {"importanceCap": 2.0, "klCoefficient": 0.1}}


def whole_gradient(rank: TrainerRank) -> torch.Tensor:
    """Of the first minibatch of SAMPLES, in float32."""
    request = make_request(SAMPLES)
    _, [batches, *_] = rank._minibatches(request, fetch_from(SAMPLES))
    reference = [frozen_logprobs(rank.updates.reference, batch, platform=MACHINE) for batch in batches]
    rank.updates.accumulate(batches, None, reference)
    parts = [full(parameter.grad).flatten() for parameter in rank.updates.parameters.values()]
    rank.updates.optimizer.zero_grad()
    return torch.cat(parts)


def train_and_record(rank: TrainerRank, directory: Path) -> None:
    """A gradient and two steps, with what they come to on rank 0; a checkpoint between the steps."""
    gradient = whole_gradient(rank)
    first = rank.train(make_request(SAMPLES), fetch_from(SAMPLES))
    sharded.write(rank.snapshot(), directory / "checkpoint")
    probe = rank.probe(PROBE)
    second = rank.train(make_request(MORE, step=2), fetch_from(MORE))
    weights = dict(rank.weights())
    if rank.rank == 0:
        metrics = [dict(first.metrics), dict(second.metrics)]
        record = {"gradient": gradient, "metrics": metrics, "probe": probe, "weights": weights}
        torch.save(record, directory / "record")


def work_of_two(rank: TrainerRank, directory: Path) -> None:
    """An error on one rank, two steps, and the second again from the checkpoint between them."""
    held = SAMPLES if rank.rank == 0 else SAMPLES[:1]
    with pytest.raises(KeyError):
        rank.train(make_request(SAMPLES), fetch_from(held))
    (directory / f"rank-{rank.rank}-saw-the-error").touch()
    train_and_record(rank, directory)
    rank.restore(directory / "checkpoint", described(directory / "checkpoint"))
    rank.train(make_request(MORE, step=2), fetch_from(MORE))
    again = dict(rank.weights())
    if rank.rank == 0:
        torch.save(again, directory / "again")


@pytest.fixture(scope="module", params=["qwen3", pytest.param("gemma2", marks=pytest.mark.extended)])
def spec(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RLJobSpec:
    """Of a model whose samples are packed, and of one whose samples are padded, with gradient checkpointing too."""
    directory = tmp_path_factory.mktemp("model")
    save_random_model(AutoModelForCausalLM.from_config, tiny_config(request.param), directory)
    trainer = {"minibatches": 2, "maxTokensPerBin": 64, "gradientCheckpointing": request.param == "gemma2"}
    return make_spec(directory, **SECTIONS, trainer=trainer)


@pytest.fixture(scope="module")
def of_two(spec: RLJobSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("two")
    run_ranks(2, work_of_two, spec, directory)
    return directory


@pytest.fixture(scope="module")
def of_one(spec: RLJobSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("one")
    with only_rank(spec) as rank:
        train_and_record(rank, directory)
    return directory


def read(file: Path) -> dict:
    return torch.load(file, weights_only=True)


def test_two_ranks_have_the_gradient_of_one(of_one: Path, of_two: Path) -> None:
    one, two = read(of_one / "record"), read(of_two / "record")
    assert (two["gradient"] - one["gradient"]).norm() < 1e-5 * one["gradient"].norm()
    for step in (0, 1):
        for name in one["metrics"][step]:
            if not name.startswith("timing_s/"):
                assert two["metrics"][step][name] == pytest.approx(one["metrics"][step][name], rel=1e-4, abs=1e-7), name
    assert two["probe"] == pytest.approx(one["probe"], abs=1e-4)


def test_what_two_ranks_saved_one_restores_and_goes_on(spec: RLJobSpec, of_two: Path) -> None:
    two = read(of_two / "record")
    with only_rank(spec) as rank:
        rank.restore(of_two / "checkpoint", described(of_two / "checkpoint"))
        assert rank.probe(PROBE) == pytest.approx(two["probe"], abs=1e-6)
        again = rank.train(make_request(MORE, step=2), fetch_from(MORE))
        assert again.metrics["actor/pg_loss"] == pytest.approx(two["metrics"][1]["actor/pg_loss"], rel=1e-4)
        assert again.metrics["actor/grad_norm"] == pytest.approx(two["metrics"][1]["actor/grad_norm"], rel=1e-4)
        for name, weight in rank.weights():
            torch.testing.assert_close(weight, two["weights"][name], rtol=1e-3, atol=1e-5)


def test_two_ranks_repeat_bit_for_bit_from_a_checkpoint(of_two: Path) -> None:
    first, second = read(of_two / "record")["weights"], read(of_two / "again")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_an_error_on_one_rank_is_raised_on_all(of_two: Path) -> None:
    assert {path.name for path in of_two.glob("rank-*")} == {"rank-0-saw-the-error", "rank-1-saw-the-error"}
