"""How much /dev/shm a pod has where the runtime template has no volume `shm`. Pure."""

from longboat_crds.base import Role
from longboat_crds.job import RLJobSpec

DEFAULT_MIB = 256
# A response's bytes for each token: an id and a log-probability of 4 bytes each, and its text.
BYTES_PER_TOKEN = 16
BYTES_PER_ID = 4


def default_shared_memory(role: Role, spec: RLJobSpec) -> str:
    """Returns the size as a quantity.

    Through the driver's pod, which has the Ray head, go the responses of a step, on top of the rest; through environment pods the contexts
    of the turns that their episodes wait for.
    """
    match role:
        case Role.DRIVER:
            travels = response_bytes(spec)
        case Role.ENVIRONMENT:
            episodes = max((pool.episodes_per_pod for pool in spec.environment_pools or ()), default=0)
            travels = episodes * (spec.model.max_length or 0) * BYTES_PER_ID
        case _:
            travels = 0
    return f"{DEFAULT_MIB + travels // 2**20}Mi"


def response_bytes(spec: RLJobSpec) -> int:
    """Returns the bytes of the responses of one step, on their way to the trainer.

    Those of environments have what was drawn and what they answered: together, they are taken for one context each.
    """
    samples = spec.rounds.prompts_per_round * spec.algorithm.group_size
    context = (spec.model.max_length or 0) if spec.environments else 0
    return samples * max(spec.rollout.sampling.max_tokens, context) * BYTES_PER_TOKEN
