from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.rollout.environment import (
    NO_BINDING,
    CpuShare,
    NodeDevices,
    cpu_share,
    environment,
    visible_accelerators,
)

CONFIG = EngineConfig(name="e", model="/models/m", dtype="float32", enforce_eager=True)
SHARE = CpuShare("0|1", 1, (0, 1))


def test_an_eager_engine_on_cpu_compiles_nothing_and_is_bound() -> None:
    made = environment(CONFIG, SHARE, in_process=True)
    assert made["TORCHDYNAMO_DISABLE"] == "1"
    assert made["VLLM_CPU_OMP_THREADS_BIND"] == "0|1"
    assert made["OMP_NUM_THREADS"] == "1"
    assert made["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert "TORCHDYNAMO_DISABLE" not in environment(replace(CONFIG, enforce_eager=False), SHARE, in_process=True)


def test_cpus_of_an_engine_on_an_accelerator_are_left_alone() -> None:
    made = environment(CONFIG, SHARE, in_process=False, accelerators="2,3")
    assert made["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"
    assert made["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert made.keys().isdisjoint({"VLLM_CPU_OMP_THREADS_BIND", "OMP_NUM_THREADS", "TORCHDYNAMO_DISABLE"})


@pytest.mark.parametrize("accelerators", [None, "0"])
def test_every_engine_runs_the_model_runner_that_tests_run(accelerators: str | None) -> None:
    """On a GPU vLLM would choose another."""
    assert environment(CONFIG, SHARE, in_process=True, accelerators=accelerators)["VLLM_USE_V2_MODEL_RUNNER"] == "0"


def share(
    affinity: set[int],
    limit: float | None = None,
    node: int = 64,
    engine: int = 0,
    engines: int = 1,
    workers: int = 1,
    request: float = 0,
) -> CpuShare:
    devices = range(engine * workers, (engine + 1) * workers)
    return cpu_share(
        affinity, node_cpus=node, limit=limit, request=request, devices=devices, node_devices=engines * workers
    )


def test_own_cpus_are_split_over_engines_and_workers() -> None:
    cpus = {8, 9, 10, 11, 24, 25, 26, 27}
    assert share(cpus, engine=0, engines=2, workers=2) == CpuShare("8,9|10,11", 2, (8, 9, 10, 11))
    assert share(cpus, engine=1, engines=2, workers=2) == CpuShare("24,25|26,27", 2, (24, 25, 26, 27))


def test_cpus_shared_with_other_pods_are_not_bound() -> None:
    assert share(set(range(64)), limit=4.0, request=4.0, workers=2) == CpuShare(NO_BINDING, 2)
    assert share(set(range(64)), request=5.9, engines=2) == CpuShare(NO_BINDING, 2)
    assert share(set(range(64)), limit=0.5, request=0.5) == CpuShare(NO_BINDING, 1)


def test_an_engine_sees_its_own_accelerators_of_a_pod() -> None:
    assert visible_accelerators((2, 3), NodeDevices(4, 4), None) == "2,3"
    assert visible_accelerators((0, 1), NodeDevices(2, 2), "GPU-a,GPU-b") == "GPU-a,GPU-b"
    assert visible_accelerators((0, 1), NodeDevices(2, 4), None) == "2,3", (
        "Ray gives trainers of the same node the first ones"
    )


def test_too_few_accelerators_are_a_problem_of_the_spec() -> None:
    with pytest.raises(SpecProblem, match="needs 4 accelerators, enginesPerPod x tensorParallel, and has 2") as caught:
        visible_accelerators((0, 1), NodeDevices(4, 2), None)
    assert (caught.value.reason, caught.value.field) == (Reason.PARALLELISM_INVALID, "rollout.tensorParallel")


def test_without_any_promise_a_worker_has_one_thread() -> None:
    assert share({0, 1}, node=2, workers=2) == CpuShare(NO_BINDING, 1)
    assert share({0, 1}, node=2, limit=2.0) == CpuShare(NO_BINDING, 1), "a limit guarantees nothing"


def test_too_few_cpus_are_not_bound() -> None:
    assert share({3}, workers=2) == CpuShare(NO_BINDING, 1, crowded=True)


def test_workers_that_cannot_all_run_at_once_are_crowded() -> None:
    assert share({0, 1}, node=2, limit=1.5, workers=2).crowded
    assert share({0, 1, 2}, node=4, engines=2, workers=2).crowded
    assert not share({0, 1}, node=2, limit=2.0, workers=2).crowded
    assert not share({3}).crowded, "it waits for nobody"


@given(
    st.sets(st.integers(0, 255), min_size=1, max_size=64),
    st.none() | st.floats(0.1, 300),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_shares_are_disjoint_and_within_the_affinity(
    cpus: set[int], limit: float | None, engines: int, workers: int
) -> None:
    taken: list[int] = []
    for engine in range(engines):
        got = share(cpus, limit, node=256, engine=engine, engines=engines, workers=workers)
        assert got.threads >= 1
        if got.binding != NO_BINDING:
            lists = [[int(cpu) for cpu in part.split(",")] for part in got.binding.split("|")]
            assert len(lists) == workers
            assert all(len(part) == got.threads for part in lists)
            assert [cpu for part in lists for cpu in part] == list(got.cpus)
        taken += got.cpus
    assert len(taken) == len(set(taken))
    assert set(taken) <= cpus


def test_nothing_that_an_engine_needs_before_its_environment_imports_torch() -> None:
    """OpenMP reads its number of threads when it is loaded."""
    modules = "longboat_runtime.rollout.actor, longboat_runtime.rollout.factory, longboat_runtime.weights.handover"
    program = f"import sys, {modules}; sys.exit(bool({{'torch', 'vllm'}} & {{*sys.modules}}))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_environment_is_set_before_the_models_config_is_read(tmp_path: Path) -> None:
    """For which transformers imports torch."""
    (tmp_path / "config.json").write_text('{"model_type": "qwen3", "max_position_embeddings": 64}')
    program = f"""
import sys
from longboat_runtime.rollout import factory
from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.rollout.environment import NodeDevices

def environment(*_, **__):
    sys.exit("torch" in sys.modules)

factory.environment = environment
factory.start_engine(EngineConfig("e", {str(tmp_path)!r}, "float32", enforce_eager=True), NodeDevices(1))
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
