"""The seed of a sample. Pure."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from longboat_runtime.samples import SampleId


def sample_seed(job: str, seed: int, sample: SampleId) -> int:
    """31 bits of blake2b over job, `rounds.seed` and the sample's id: always the same, on every machine and in every process.

    `job` is the uid of the RLJob or, without Kubernetes, its name. A retried sample keeps its seed; a new attempt gets another one.
    """
    return _hashed("/".join((job, str(seed), *map(str, sample))))


def continued_seed(seed: int, begun: int) -> int:
    """The seed by which a sample with this seed continues after `begun` tokens.

    It is another one, since with the same seed its next tokens would be drawn with the random numbers that drew its first.
    """
    return _hashed(f"{seed}+{begun}") if begun else seed


def _hashed(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=4).digest(), "big") >> 1
