"""Makes the workers of a CPU engine sleep while they wait for each other, if there are fewer CPUs than workers.

vLLM's workers on CPUs exchange results through shared memory, and spin until the others' results have arrived. If they can't all run at
once, the worker that is waited for gets no CPU until the one that spins has used up its time slice, several times in each step. Ranks
without common memory exchange through torch.distributed instead, which waits in the kernel.

Importing this module makes the choice for the process; vLLM imports it in every worker, before the ranks meet, to mix in `CrowdedWorker`.
"""

from __future__ import annotations

from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

from longboat_runtime.cpu.worker import CpuWorker


class CrowdedWorker(CpuWorker):
    """The extension of every worker; the module's import is what counts."""


def _share_no_memory(communicator: CpuCommunicator) -> bool:
    return False


CpuCommunicator._all_group_ranks_share_shm_group_name = _share_no_memory
