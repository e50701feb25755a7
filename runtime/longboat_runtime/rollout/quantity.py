"""Kubernetes quantities as numbers of bytes. Pure."""

from __future__ import annotations

from decimal import Decimal

UNITS = {
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
}


def in_bytes(quantity: str) -> int:
    """Whole bytes of a quantity such as `64Mi`, rounded down. The API has checked its form."""
    for suffix, factor in UNITS.items():
        if quantity.endswith(suffix):
            return int(Decimal(quantity.removesuffix(suffix)) * factor)
    if quantity.endswith("m"):
        return int(Decimal(quantity.removesuffix("m")) / 1000)
    return int(Decimal(quantity))
