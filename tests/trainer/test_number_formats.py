"""In which number format weights are kept and gathered."""

from pathlib import Path

import pytest
import torch

from bench.memory.allocations import Allocations
from longboat_crds.job import RLJobSpec
from longboat_crds.model import DType
from longboat_runtime.trainer.batch import WeightedSegment, build_batch
from longboat_runtime.trainer.forward import frozen_logprobs
from tests.support.tiny_model import build_tiny_experts, build_tiny_model
from tests.trainer.trainer_world import local, make_samples, make_spec, only_rank


def in_format(spec: RLJobSpec, dtype: DType) -> RLJobSpec:
    return spec.model_copy(update={"model": spec.model.model_copy(update={"dtype": dtype})})


@pytest.mark.parametrize(("dtype", "kept"), [(DType.BFLOAT16, torch.bfloat16), (DType.FLOAT32, torch.float32)])
@pytest.mark.parametrize("build", [build_tiny_model, build_tiny_experts])
def test_the_reference_is_kept_in_the_models_format_and_has_the_same_log_probs(
    tmp_path: Path, build: object, dtype: DType, kept: torch.dtype
) -> None:
    """To the bit: those of the trained model, which is in float32, are rounded in each pass."""
    model = build(tmp_path / "model", hidden=64)
    with only_rank(in_format(make_spec(model, algorithm={"klCoefficient": 0.1}), dtype)) as rank:
        trained, reference = rank.updates.parameters, rank.updates.reference
        assert {weight.dtype for weight in trained.values()} == {torch.float32}
        assert {weight.dtype for weight in reference.parameters()} == {kept}
        assert not any(weight.requires_grad for weight in reference.parameters())
        batch = build_batch([WeightedSegment(sample, 1.0, 1.0) for sample in make_samples(3)], rank.device)
        ours, theirs = (frozen_logprobs(model, batch, platform=rank.platform) for model in (reference, rank.model))
        assert torch.equal(ours, theirs)


def test_a_weight_is_gathered_in_the_number_format_of_the_result(tmp_path: Path) -> None:
    model = build_tiny_model(tmp_path / "model", hidden=64)
    with only_rank(in_format(make_spec(model), DType.BFLOAT16)) as rank:
        with Allocations() as allocations:
            for _ in rank.weights():
                pass
        assert allocations.largest == max(local(weight).numel() * 2 for weight in rank.updates.parameters.values())
