"""Where ranks compute with kernels that give the same bits each time."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from longboat_crds.trainer import TrainerSpec
from longboat_runtime.trainer import process_group
from longboat_runtime.trainer.rank import TrainerRank, set_deterministic
from tests.trainer.trainer_world import make_spec

WORKSPACES = "CUBLAS_WORKSPACE_CONFIG"


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    yield
    torch.use_deterministic_algorithms(before, warn_only=True)


@pytest.mark.parametrize(
    ("wanted", "device", "expected"),
    [
        pytest.param(None, "cpu", True, id="CPUs by default"),
        pytest.param(None, "cuda", False, id="GPUs not"),
        pytest.param(True, "cuda", True, id="GPUs where the job says so"),
        pytest.param(False, "cpu", False, id="CPUs not where the job says so"),
    ],
)
def test_on_for_cpus_and_off_for_gpus_unless_the_job_says_otherwise(
    *, wanted: bool | None, device: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WORKSPACES, "")
    monkeypatch.delenv(WORKSPACES)
    set_deterministic(TrainerSpec(deterministic=wanted).is_deterministic(device), device)
    assert torch.are_deterministic_algorithms_enabled() is expected
    assert (WORKSPACES in os.environ) is (expected and device == "cuda")


@pytest.mark.parametrize("trainer", [{}, {"deterministic": True}, {"deterministic": False}])
def test_a_rank_takes_deterministic_kernels_only_then_and_never_fills_new_tensors(trainer: dict[str, bool]) -> None:
    on = trainer.get("deterministic", process_group.device_type() == "cpu")
    try:
        TrainerRank(make_spec(Path("/models/none"), trainer=trainer), 0, 1, process_group.serve("127.0.0.1"))
        assert torch.are_deterministic_algorithms_enabled() is on
        assert not torch.empty(1000).isnan().all()
    finally:
        process_group.leave()
