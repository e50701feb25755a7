from __future__ import annotations

from dataclasses import replace

from longboat_runtime.rollout.binding import CpuShare
from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.rollout.environment import environment

CONFIG = EngineConfig(name="e", model="/models/m", dtype="float32", enforce_eager=True)
SHARE = CpuShare("0|1", 1, (0, 1))


def test_an_eager_engine_on_cpu_compiles_nothing_and_is_bound() -> None:
    made = environment(CONFIG, SHARE, in_process=True, accelerator=False)
    assert made["TORCHDYNAMO_DISABLE"] == "1"
    assert made["VLLM_CPU_OMP_THREADS_BIND"] == "0|1"
    assert made["OMP_NUM_THREADS"] == "1"
    assert made["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert "TORCHDYNAMO_DISABLE" not in environment(
        replace(CONFIG, enforce_eager=False), SHARE, in_process=True, accelerator=False
    )


def test_cpus_of_an_engine_on_an_accelerator_are_left_alone() -> None:
    made = environment(CONFIG, SHARE, in_process=False, accelerator=True)
    assert made["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"
    assert made.keys().isdisjoint({"VLLM_CPU_OMP_THREADS_BIND", "OMP_NUM_THREADS", "TORCHDYNAMO_DISABLE"})
