"""The environment variables of an engine's process, and the CPUs that it computes with. Pure.

vLLM reads some settings from nowhere else; all are set before it is imported. Its own rule for CPUs fails where several engines
share a node (it wants a NUMA node for each worker, and binds engines of different pods to the same cores:
vllm-project/vllm#43240), so the answer is worked out here from what the process may use.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.rollout.engine import EngineConfig

NO_BINDING = "nobind"
# Whether vLLM runs its second model runner.
MODEL_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"


@dataclass(frozen=True, slots=True)
class CpuShare:
    """`binding` is a value of VLLM_CPU_OMP_THREADS_BIND; `threads` of one worker; `cpus` of the engine (empty: not bound).

    `crowded`: it has several workers, and those of all engines of its pod can't run at once. So none may spin while it waits for another.
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
    devices: Sequence[int],
    node_devices: int,
) -> CpuShare:
    """Determines the CPUs and threads of an engine with `devices`, of the `node_devices` that its pod has.

    The pod may use the CPUs `affinity` for at most `limit` CPUs' time; `request` is the number of CPUs that Kubernetes guarantees to
    the container, 0 if none.

    The rule: threads are bound only where the CPUs are the pod's own, which is so if the kubelet gave it fewer than the
    node has (static CPU manager) and time is not limited below that, and only if each worker (tensor-parallel rank)
    gets at least one. Then each device has an equal, contiguous part of them. Otherwise nothing is bound, since
    others may use the same CPUs, and each worker gets its part of the guaranteed CPUs as threads, at least one. A limit guarantees
    nothing: threads that wait for each other on CPUs that others use cost more than they bring (measured on two busy CPUs: with two
    threads a round took almost four times as long as with one). For the same reason an engine may be `crowded`.
    """
    cpus = sorted(affinity)
    exclusive = len(cpus) < node_cpus and (limit is None or limit >= len(cpus))
    if not exclusive or len(cpus) < node_devices:
        usable = len(cpus) if limit is None else min(len(cpus), limit)
        threads = max(1, math.floor(min(usable, request) / node_devices))
        return CpuShare(NO_BINDING, threads, crowded=len(devices) > 1 and usable < node_devices)
    threads = len(cpus) // node_devices
    lists = [cpus[device * threads : (device + 1) * threads] for device in devices]
    own = tuple(cpu for part in lists for cpu in part)
    return CpuShare("|".join(",".join(str(cpu) for cpu in part) for part in lists), threads, own)


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """Counts the `devices` that a rollout node has for engines, and the `accelerators` that Ray finds; engines on CPUs ignore those."""

    devices: int
    accelerators: int = 0


def visible_accelerators(devices: Sequence[int], node: NodeDevices, visible: str | None) -> str:
    """Returns the accelerators of an engine with `devices` of `node`, as CUDA_VISIBLE_DEVICES names them.

    `visible` is that variable's value so far. The rule: a node's engines have its last accelerators. In a rollout pod those are mostly
    all; on a machine that runs a whole job, Ray gives trainers the first ones. Raises SpecProblem if the node has fewer accelerators than
    devices.
    """
    first = node.accelerators - node.devices
    if first < 0:
        raise SpecProblem(
            Reason.PARALLELISM_INVALID,
            "rollout.tensorParallel",
            f"a rollout pod needs {node.devices} accelerators, enginesPerPod x tensorParallel, and has {node.accelerators}: lower one of "
            "them, or have the runtime template's rollout container ask for more",
        )
    names = visible.split(",") if visible else [str(number) for number in range(node.accelerators)]
    return ",".join(names[first + device] for device in devices)


def environment(
    config: EngineConfig, share: CpuShare, *, in_process: bool, accelerators: str | None = None
) -> dict[str, str]:
    """Returns the variables for one engine. `accelerators` names those that it computes with (`visible_accelerators`); None for CPUs.

    On CPU an eager engine must not compile at all: vLLM's tensor-parallel path compiles one function even then, at
    the first request, and pods rarely have a compiler.

    vLLM 0.32 would choose its second model runner where Triton can be used, so on GPUs, and its first on CPUs: the second ends there with
    "Model Runner V2 requires Triton", whose wheels have no backend for CPUs. All tests of engines run on CPUs, so engines run what is
    tested. A variable of the pod template changes nothing about it.
    """
    variables = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if in_process else "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        MODEL_RUNNER: "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    if accelerators is not None:
        variables["CUDA_VISIBLE_DEVICES"] = accelerators
    else:
        variables["VLLM_CPU_OMP_THREADS_BIND"] = share.binding
        variables["OMP_NUM_THREADS"] = str(share.threads)
        if config.enforce_eager:
            variables["TORCHDYNAMO_DISABLE"] = "1"
    return variables
