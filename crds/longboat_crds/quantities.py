"""Quantities of the API: of CPUs as whole millicores, of memory as whole bytes. Pure."""

from decimal import ROUND_CEILING, Decimal
from functools import lru_cache

# Suffixes of a CPU quantity (apimachinery's resource.Quantity) and what they multiply by.
_SUFFIXES = {"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "k": Decimal(1000)}
# The same of a quantity of bytes, the two-letter ones first.
_BYTES = {
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)},
    **{letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", 1)},
    "m": Decimal("1e-3"),
}


@lru_cache(maxsize=4096)
def millicores(text: str) -> int:
    """Reads the millicores of a CPU quantity such as `500m` or `2`, rounded up as the API server does."""
    factor = _SUFFIXES.get(text[-1:])
    number = Decimal(text[:-1]) * factor if factor else Decimal(text)
    return int((number * 1000).to_integral_value(rounding=ROUND_CEILING))


def cpu_quantity(thousandths: int) -> str:
    """Returns the CPU quantity of so many millicores, in cores if they are whole: `2`, `1500m`."""
    return f"{thousandths}m" if thousandths % 1000 else str(thousandths // 1000)


@lru_cache(maxsize=4096)
def in_bytes(text: str) -> int:
    """Reads the whole bytes of a quantity such as `64Mi`, rounded down. Raises ArithmeticError or ValueError if it can't."""
    for suffix, factor in _BYTES.items():
        if text.endswith(suffix):
            return int(Decimal(text.removesuffix(suffix)) * factor)
    return int(Decimal(text))
