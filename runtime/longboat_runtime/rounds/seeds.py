"""The seed of a sample. Pure."""

from __future__ import annotations

from hashlib import blake2b

from longboat_runtime.samples import SampleId


def sample_seed(job: str, seed: int, sample: SampleId, begun: int = 0) -> int:
    """31 bits of blake2b over job, `rounds.seed` and the sample's id: always the same, on every machine and in every process.

    `job` is the uid of the RLJob or, without Kubernetes, its name. A retried sample keeps its seed; a new attempt gets another one.
    So does a sample that continues after `begun` tokens, since with the same seed it would draw its next tokens with the random
    numbers that drew its first.
    """
    name = "/".join((job, str(seed), *map(str, sample), *([f"+{begun}"] if begun else [])))
    return int.from_bytes(blake2b(name.encode(), digest_size=4).digest(), "big") >> 1
