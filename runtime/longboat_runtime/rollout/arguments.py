"""vLLM's arguments for an engine. Pure.

Written against one version of vLLM, whose interface for reinforcement learning changes from release to release.
"""

from __future__ import annotations

from typing import Any

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime import weights
from longboat_runtime.rollout.engine import EngineConfig

VLLM_VERSION = "0.32.0"

# Tokens of a block on CPUs where engines serve turns: the least that vLLM's attention there takes. The tokens behind a turn's last whole
# block are computed again by the next one.
CPU_TURN_BLOCK = 32

# On CPU vLLM would otherwise claim most of the node's memory, whatever the pod may use.
CPU_KV_CACHE_BYTES = 2**30

# Names in `longboat_runtime.rollout.scheduler`, which can't be imported without vLLM.
SCHEDULER = "longboat_runtime.rollout.scheduler.CountingScheduler"
ASYNC_SCHEDULER = "longboat_runtime.rollout.scheduler.CountingAsyncScheduler"


def check_version(version: str) -> None:
    """Raises SpecProblem if the installed vLLM is not the one this package was written against."""
    if version.split("+", maxsplit=1)[0] != VLLM_VERSION:
        raise SpecProblem(
            Reason.SPEC_INVALID,
            "spec.runtimeRef",
            f"vLLM {version} is installed where engines run, Longboat needs {VLLM_VERSION}; use a runtime with Longboat's image, or "
            "install the extra [cpu] or [gpu]",
        )


def engine_arguments(
    config: EngineConfig, *, max_length: int, accelerator: bool, crowded: bool = False
) -> dict[str, Any]:
    """Returns the arguments of vLLM's `EngineArgs`.

    No file of weights is read, unless the config says so: an engine serves nothing before its first publication, which brings all of them
    or is refused. Log-probs
    are those of the distribution that tokens are drawn from (`processed_logprobs`), as the loss needs them. Requests
    have priorities so that the parity probe can go first. On CPU a prompt is never cut in chunks: vLLM 0.32
    rewinds a seeded generator after each but the last chunk, which a CPU generator can't do, and the engine dies. Nor is the next
    step scheduled while one is computed: both need the same CPU (measured: a decode step takes a fifth longer). An eager engine there
    uses the kernels for norms of `cpu.norms`; a compiled engine has the compiler's.
    """
    arguments: dict[str, Any] = {
        "model": config.model,
        "dtype": config.dtype,
        "max_model_len": max_length,
        "max_num_seqs": config.max_sequences,
        "tensor_parallel_size": config.tensor_parallel,
        "enforce_eager": config.enforce_eager,
        "load_format": "auto" if config.reads_weights else "dummy",
        "logprobs_mode": "processed_logprobs",
        "scheduling_policy": "priority",
        "weight_transfer_config": {"backend": weights.BACKEND},
        "async_scheduling": accelerator,
        "scheduler_cls": ASYNC_SCHEDULER if accelerator else SCHEDULER,
        "worker_extension_cls": weights.WORKER_EXTENSION,
    }
    if config.tensor_parallel > 1:
        arguments["distributed_executor_backend"] = "mp"
    if config.kv_cache_bytes is not None:
        arguments["kv_cache_memory_bytes"] = config.kv_cache_bytes
    if not accelerator:
        from longboat_runtime import cpu

        arguments["worker_extension_cls"] = cpu.CROWDED_WORKER_EXTENSION if crowded else cpu.WORKER_EXTENSION
        arguments.setdefault("kv_cache_memory_bytes", CPU_KV_CACHE_BYTES)
        if config.parsers is not None:
            arguments["block_size"] = CPU_TURN_BLOCK
        arguments["enable_chunked_prefill"] = False
        arguments["max_num_batched_tokens"] = max(max_length, 2048)
        if config.enforce_eager:
            arguments["ir_op_priority"] = {"rms_norm": [cpu.NORM_PROVIDER], "fused_add_rms_norm": [cpu.NORM_PROVIDER]}
    return arguments
