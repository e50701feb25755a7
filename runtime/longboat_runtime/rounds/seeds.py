"""The seed of a sample. Pure."""

from __future__ import annotations

from hashlib import blake2b

from longboat_runtime.samples import SampleId


def sample_seed(job: str, seed: int, sample: SampleId, begun: int = 0) -> int:
    """31 bits of blake2b over job, `rounds.seed` and the sample's name: the same on every machine, in every process, always.

    `job` is the uid of the RLJob or, without Kubernetes, its name. A sample that is made again has its seed again; a new
    attempt has another one. So has a sample that goes on behind `begun` tokens, or it would draw the next ones by the chance that
    drew its first.
    """
    name = "/".join((job, str(seed), *map(str, sample), *([f"+{begun}"] if begun else [])))
    return int.from_bytes(blake2b(name.encode(), digest_size=4).digest(), "big") >> 1
