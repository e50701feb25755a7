"""Ranks in pods of several devices: sharded over all of them, or with a copy of the model in each pod. Real processes, real gloo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from longboat_crds.job import RLJobSpec
from longboat_runtime.checkpoint import sharded
from longboat_runtime.trainer.rank import TrainerRank
from tests.support.architectures import tiny_config
from tests.support.checkpoints import described
from tests.support.tiny_model import save_random_model
from tests.trainer.trainer_world import (
    fetch_from,
    full,
    local,
    make_request,
    make_samples,
    make_spec,
    only_rank,
    run_ranks,
)

SAMPLES = make_samples(6)
STEPS = 10
BATCHES = [make_samples(5, seed=step) for step in range(1, STEPS + 1)]
# By name: pods, devices of each, and copies of the model.
MESHES = {"shard-4": (2, 2, 1), "replicate-2-shard-2": (2, 2, 2)}


def on(spec: RLJobSpec, pods: int, devices: int, copies: int) -> RLJobSpec:
    """The job with another trainer."""
    counts = {"replicas": pods, "devices_per_pod": devices, "replicate_degree": copies}
    return spec.model_copy(update={"trainer": spec.trainer.model_copy(update=counts)})


def gradients(rank: TrainerRank) -> dict[str, torch.Tensor]:
    """Whole gradients of SAMPLES by name, in float32. Nothing has changed afterwards."""
    _, [batches] = rank._minibatches(make_request(SAMPLES), fetch_from(SAMPLES))
    rank.updates.accumulate(batches, None, None)
    found = {name: full(parameter.grad) for name, parameter in rank.updates.parameters.items()}
    rank.updates.discard()
    return found


def trained(rank: TrainerRank) -> list[dict[str, float]]:
    """Loss and norm of each of STEPS steps over the same batches."""
    reports = [rank.train(make_request(samples, step), fetch_from(samples)) for step, samples in enumerate(BATCHES, 2)]
    return [{name: report.metrics[name] for name in ("actor/pg_loss", "actor/grad_norm")} for report in reports]


def saved_and_trained(rank: TrainerRank, directory: Path) -> None:
    """Gradients, a step, a checkpoint and STEPS steps, with what they come to on rank 0, and each rank's shards at the end."""
    found = gradients(rank)
    rank.train(make_request(SAMPLES), fetch_from(SAMPLES))
    sharded.write(rank.snapshot(), directory / "checkpoint")
    steps, weights = trained(rank), dict(rank.weights())
    if rank.rank == 0:
        torch.save({"gradients": found, "steps": steps, "weights": weights}, directory / "record")
    shards = {name: local(parameter.detach()) for name, parameter in rank.updates.parameters.items()}
    torch.save(shards, directory / f"shards-{rank.rank}")


def resumed(rank: TrainerRank, directory: Path) -> None:
    """The steps after the checkpoint that `directory` has a link to."""
    rank.restore(directory / "checkpoint", described(directory / "checkpoint"))
    steps = trained(rank)
    if rank.rank == 0:
        torch.save(steps, directory / "steps")


def read(file: Path) -> Any:
    return torch.load(file, weights_only=True)


@pytest.fixture(
    scope="module",
    params=["qwen3", *(pytest.param(name, marks=pytest.mark.extended) for name in ("mixtral", "gemma2"))],
)
def spec(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RLJobSpec:
    directory = tmp_path_factory.mktemp("model")
    save_random_model(AutoModelForCausalLM.from_config, tiny_config(request.param), directory)
    return make_spec(directory, trainer={"maxTokensPerBin": 64})


@pytest.fixture(scope="module")
def alone(spec: RLJobSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("alone")
    with only_rank(spec) as rank:
        saved_and_trained(rank, directory)
    return directory


@pytest.fixture(scope="module", params=MESHES)
def four(request: pytest.FixtureRequest, spec: RLJobSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(request.param)
    run_ranks(4, saved_and_trained, on(spec, *MESHES[request.param]), directory)
    return directory


def test_four_ranks_have_the_gradients_of_one(alone: Path, four: Path) -> None:
    one, all_four = read(alone / "record")["gradients"], read(four / "record")["gradients"]
    assert one.keys() == all_four.keys()
    for name, gradient in one.items():
        assert gradient.norm() > 0, name
        assert (all_four[name] - gradient).norm() <= 1e-5 * gradient.norm(), name


def test_four_ranks_train_as_one_does(alone: Path, four: Path) -> None:
    one, all_four = read(alone / "record"), read(four / "record")
    assert_same_steps(all_four["steps"], one["steps"])


def assert_same_steps(found: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    assert len(found) == len(expected) == STEPS
    for step, (values, others) in enumerate(zip(found, expected, strict=True)):
        assert values == pytest.approx(others, rel=1e-4, abs=1e-6), step


def test_copies_of_the_model_stay_the_same_and_are_saved_once(alone: Path, four: Path) -> None:
    shards = [read(four / f"shards-{rank}") for rank in range(4)]
    copies = [shards[:2], shards[2:]] if "replicate" in four.name else [shards]
    for other in copies[1:]:
        for mine, theirs in zip(copies[0], other, strict=True):
            assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    sizes = [sum(entry.size for entry in described(folder / "checkpoint")) for folder in (alone, four)]
    assert sizes[1] < 1.2 * sizes[0]
    assert len([*(four / "checkpoint").glob("*.distcp")]) == 4, "all ranks write"


@pytest.mark.parametrize(
    "trainer",
    [
        (1, 1, 1),
        *(pytest.param(mesh, marks=pytest.mark.extended) for mesh in ((1, 2, 1), (2, 1, 2), (2, 2, 1), (2, 2, 2))),
    ],
    ids=str,
)
def test_what_four_ranks_saved_others_resume_from(
    trainer: tuple[int, int, int], spec: RLJobSpec, four: Path, tmp_path: Path
) -> None:
    (tmp_path / "checkpoint").symlink_to(four / "checkpoint")
    pods, devices, _ = trainer
    if pods * devices == 1:
        with only_rank(spec) as rank:
            resumed(rank, tmp_path)
    else:
        run_ranks(pods * devices, resumed, on(spec, *trainer), tmp_path)
    assert_same_steps(read(tmp_path / "steps"), read(four / "record")["steps"])
