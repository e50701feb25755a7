"""Environment of an engine's process. vLLM reads some settings nowhere else; all are set before it is imported."""

from __future__ import annotations

import os

from longboat_runtime.quota import cpu_quota
from longboat_runtime.rollout.binding import CpuShare, cpu_share
from longboat_runtime.rollout.engine import EngineConfig


def environment(config: EngineConfig, share: CpuShare, *, in_process: bool, accelerator: bool) -> dict[str, str]:
    """The variables for one engine. Pure.

    On CPU an eager engine must not compile at all: vLLM's tensor-parallel path compiles one function even then, at
    the first request, and pods have no compiler.
    """
    variables = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if in_process else "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    if not accelerator:
        variables["VLLM_CPU_OMP_THREADS_BIND"] = share.binding
        variables["OMP_NUM_THREADS"] = str(share.threads)
        if config.enforce_eager:
            variables["TORCHDYNAMO_DISABLE"] = "1"
    return variables


def own_share(engine: int, engines: int, workers: int) -> CpuShare:
    """`cpu_share` of this process, from its affinity and its cgroup."""
    return cpu_share(
        os.sched_getaffinity(0),
        node_cpus=os.cpu_count() or 1,
        quota=cpu_quota(),
        engine=engine,
        engines=engines,
        workers=workers,
    )
