"""Which CPUs an engine on CPU computes with. Pure.

vLLM's own rule fails where several engines share a node (it wants a NUMA node for each worker, and binds engines of
different pods to the same cores: vllm-project/vllm#43240), so the answer is worked out here from what the process may use.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

NO_BINDING = "nobind"


@dataclass(frozen=True, slots=True)
class CpuShare:
    """`binding` is a value of VLLM_CPU_OMP_THREADS_BIND; `threads` of one worker; `cpus` of the engine (empty: not bound)."""

    binding: str
    threads: int
    cpus: tuple[int, ...] = ()


def cpu_share(
    affinity: Collection[int],
    *,
    node_cpus: int,
    quota: float | None,
    engine: int,
    engines: int,
    workers: int,
) -> CpuShare:
    """The share of engine number `engine` of `engines` in a pod that may use the CPUs `affinity` for at most `quota` CPUs' time.

    The rule: threads are bound only where the CPUs are the pod's own, which is so if the kubelet gave it fewer than the
    node has (static CPU manager) and time is not limited below that, and only if each worker (tensor-parallel rank)
    gets at least one. Then engines and their workers get equal, disjoint, contiguous parts. Otherwise nothing is bound, since
    others may use the same CPUs. Each worker then has its part of the quota as threads, at least one; without a quota
    nobody has promised CPUs, and it has one: threads that wait for each other on CPUs that others use cost more than they bring
    (measured on two busy CPUs: two threads drew a tenth of the tokens of one).
    """
    cpus = sorted(affinity)
    parts = engines * workers
    exclusive = len(cpus) < node_cpus and (quota is None or quota >= len(cpus))
    if not exclusive or len(cpus) < parts:
        return CpuShare(NO_BINDING, 1 if quota is None else max(1, math.floor(min(len(cpus), quota) / parts)))
    threads = len(cpus) // parts
    first = engine * workers * threads
    own = cpus[first : first + workers * threads]
    lists = [own[rank * threads : (rank + 1) * threads] for rank in range(workers)]
    return CpuShare("|".join(",".join(str(cpu) for cpu in part) for part in lists), threads, tuple(own))
