"""The environment variables of an engine's process, and the CPUs that it computes with. Pure.

vLLM reads some settings from nowhere else; all are set before it is imported. Its own rule for CPUs fails where several engines
share a node (it wants a NUMA node for each worker, and binds engines of different pods to the same cores:
vllm-project/vllm#43240), so the answer is worked out here from what the process may use.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from longboat_runtime.rollout.engine import EngineConfig

NO_BINDING = "nobind"


@dataclass(frozen=True, slots=True)
class CpuShare:
    """`binding` is a value of VLLM_CPU_OMP_THREADS_BIND; `threads` of one worker; `cpus` of the engine (empty: not bound).

    `crowded`: its workers can't all run at once, so none of them may spin while it waits for another.
    """

    binding: str
    threads: int
    cpus: tuple[int, ...] = ()
    crowded: bool = False


def cpu_share(
    affinity: Collection[int],
    *,
    node_cpus: int,
    limit: float | None,
    request: float,
    engine: int,
    engines: int,
    workers: int,
) -> CpuShare:
    """The share of engine number `engine` of `engines` in a pod that may use the CPUs `affinity` for at most `limit` CPUs' time.

    `request` is the number of CPUs that Kubernetes guarantees to the container, 0 if none.

    The rule: threads are bound only where the CPUs are the pod's own, which is so if the kubelet gave it fewer than the
    node has (static CPU manager) and time is not limited below that, and only if each worker (tensor-parallel rank)
    gets at least one. Then engines and their workers get equal, disjoint, contiguous parts. Otherwise nothing is bound, since
    others may use the same CPUs, and each worker gets its part of the guaranteed CPUs as threads, at least one. A limit guarantees
    nothing: threads that wait for each other on CPUs that others use cost more than they bring (measured on two busy CPUs: with two
    threads a round took almost four times as long as with one). For the same reason workers that can't all run at once are `crowded`.
    """
    cpus = sorted(affinity)
    parts = engines * workers
    exclusive = len(cpus) < node_cpus and (limit is None or limit >= len(cpus))
    if not exclusive or len(cpus) < parts:
        usable = len(cpus) if limit is None else min(len(cpus), limit)
        threads = max(1, math.floor(min(usable, request) / parts))
        return CpuShare(NO_BINDING, threads, crowded=workers > 1 and usable < parts)
    threads = len(cpus) // parts
    first = engine * workers * threads
    own = cpus[first : first + workers * threads]
    lists = [own[rank * threads : (rank + 1) * threads] for rank in range(workers)]
    return CpuShare("|".join(",".join(str(cpu) for cpu in part) for part in lists), threads, tuple(own))


def environment(config: EngineConfig, share: CpuShare, *, in_process: bool, accelerator: bool) -> dict[str, str]:
    """The variables for one engine.

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
