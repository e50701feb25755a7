"""Sums of CPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from longboat_operator.model import Object

# Suffixes of a CPU quantity (apimachinery's resource.Quantity) and what they multiply by.
_SUFFIXES = {"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "k": Decimal(1000)}


def cores(quantity: str) -> Decimal:
    """Cores of a quantity such as `500m` or `2`."""
    factor = _SUFFIXES.get(quantity[-1:])
    return Decimal(quantity[:-1]) * factor if factor else Decimal(quantity)


def text(number: Decimal) -> str:
    """Shortest quantity, rounded up to thousandths: `2`, `1500m`."""
    thousandths = int((number * 1000).to_integral_value(rounding="ROUND_CEILING"))
    return f"{thousandths}m" if thousandths % 1000 else str(thousandths // 1000)


def limits_of(pods: Iterable[Object], container: str) -> str | None:
    """Sum of the CPU limits of one container over pods; None when one has no limit."""
    found = [
        (c.get("resources") or {}).get("limits", {}).get("cpu")
        for pod in pods
        for c in pod.get("spec", {}).get("containers") or ()
        if c["name"] == container
    ]
    return text(sum((cores(str(q)) for q in found), Decimal(0))) if found and all(found) else None
