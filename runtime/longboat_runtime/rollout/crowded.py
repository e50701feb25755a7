"""Workers of an engine on CPUs that has fewer of them than workers: they sleep while they wait for each other.

vLLM's workers on CPUs exchange results through shared memory, and spin until those of the others have come. Where they can't all run at
once, the one that is waited for gets no CPU before the one that spins has used up its time slice, several times in each step. vLLM
exchanges through torch.distributed where ranks have no memory in common, and that waits in the kernel. For the next step, or for its
results, processes spin for a second before they sleep; here they sleep at once.

Importing this module makes the choice for the process: the engine's own, and every worker, where vLLM imports it to mix `CrowdedWorker`
in before ranks meet.
"""

from __future__ import annotations

from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

from longboat_runtime.weights.backend import WeightReceipts


class CrowdedWorker(WeightReceipts):
    """What every worker gets."""


def _share_no_memory(communicator: CpuCommunicator) -> bool:
    return False


def _forget(condition: SpinCondition) -> None:
    """Instead of noting the time of a read, after which it would spin for a second."""


CpuCommunicator._all_group_ranks_share_shm_group_name = _share_no_memory
SpinCondition.record_read = _forget
