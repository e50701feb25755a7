"""Workers of an engine on CPUs that has fewer of them than workers: they sleep while they wait for each other.

vLLM's workers on CPUs exchange results through shared memory, and spin until those of the others have come. Where they can't all run at
once, the one that is waited for gets no CPU before the one that spins has used up its time slice, several times in each step. vLLM
exchanges through torch.distributed where ranks have no memory in common, and that waits in the kernel. For a step and its results
processes look into shared memory all the time; here they sleep between two looks. (To wait for vLLM's own notice instead, as it does
after a second, stalls: it may be lost, and the next look is after five.)

Importing this module makes the choice for the process: the engine's own, and every worker, where vLLM imports it to mix `CrowdedWorker`
in before ranks meet.
"""

from __future__ import annotations

import time

from vllm.distributed.device_communicators import shm_broadcast
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

from longboat_runtime.weights.backend import WeightReceipts

# Seconds between two looks.
_LOOK = 1e-4


class CrowdedWorker(WeightReceipts):
    """What every worker gets."""


def _share_no_memory(communicator: CpuCommunicator) -> bool:
    return False


def _sleep() -> None:
    """Instead of `sched_yield`, which returns at once where others that wait are all that could run."""
    time.sleep(_LOOK)


CpuCommunicator._all_group_ranks_share_shm_group_name = _share_no_memory
shm_broadcast.sched_yield = _sleep
