"""How much /dev/shm a pod has where the runtime template has no volume `shm`. Pure."""

from longboat_crds.base import Role
from longboat_crds.job import RLJobSpec

DEFAULT_MIB = 256
# A response's bytes for each token: an id and a log-probability of 4 bytes each, and its text.
BYTES_PER_TOKEN = 16


def default_shared_memory(role: Role, spec: RLJobSpec) -> str:
    """Returns the size as a quantity. Through the driver's pod, which has the Ray head, go the responses of a step, on top of the rest."""
    if role is not Role.DRIVER:
        return f"{DEFAULT_MIB}Mi"
    return f"{DEFAULT_MIB + response_bytes(spec) // 2**20}Mi"


def response_bytes(spec: RLJobSpec) -> int:
    """Returns the bytes of the responses of one step, on their way to the trainer."""
    samples = spec.rounds.prompts_per_round * spec.algorithm.group_size
    return samples * spec.rollout.sampling.max_tokens * BYTES_PER_TOKEN
