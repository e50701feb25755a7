"""Pseudo-random numbers that are functions of their names: the same for every policy, whatever it launches when. Pure."""

from __future__ import annotations

from hashlib import blake2b
from statistics import NormalDist

_NORMAL = NormalDist()
_RANGE = 2**64


def uniform(*name: object) -> float:
    """Derives a number between 0 and 1 from the name; over names, it is uniformly distributed."""
    digest = blake2b("/".join(map(str, name)).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") + 0.5) / (_RANGE + 1)


def normal(*name: object) -> float:
    """Derives a normally distributed number, of mean 0 and variance 1, from the name."""
    return _NORMAL.inv_cdf(uniform(*name))
