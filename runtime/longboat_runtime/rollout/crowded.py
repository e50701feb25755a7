"""Workers of an engine on CPUs that has fewer of them than workers: they sleep while they wait for each other.

vLLM's workers on CPUs exchange results through shared memory, and spin until those of the others have come. Where they can't all run at
once, the one that is waited for gets no CPU before the one that spins has used up its time slice, several times in each step. vLLM
exchanges through torch.distributed where ranks have no memory in common, and that waits in the kernel.

Importing this module makes the choice for the process; vLLM imports it in every worker to mix `CrowdedWorker` in, before ranks meet.
"""

from __future__ import annotations

from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

from longboat_runtime.weights.backend import WeightReceipts


class CrowdedWorker(WeightReceipts):
    """What every worker gets."""


def _share_no_memory(communicator: CpuCommunicator) -> bool:
    return False


CpuCommunicator._all_group_ranks_share_shm_group_name = _share_no_memory
