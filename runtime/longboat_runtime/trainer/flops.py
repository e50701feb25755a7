"""Counts the floating-point operations that training takes, and those that a device can do. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Dense half-precision operations per second by the words of a device's name, from NVIDIA's and AMD's data sheets; the first whose
# words are all in the name counts.
_PEAKS: Sequence[tuple[str, float]] = (
    ("GB200", 2500e12),
    ("B200", 2250e12),
    ("GH200", 989e12),
    ("H200 NVL", 835e12),
    ("H200", 989e12),
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H100", 989e12),
    ("H800 PCIe", 756e12),
    ("H800", 989e12),
    ("H20", 148e12),
    ("A100", 312e12),
    ("A800", 312e12),
    ("L40S", 362e12),
    ("L40", 181e12),
    ("L4", 121e12),
    ("A40", 150e12),
    ("A30", 165e12),
    ("A10", 125e12),
    ("A10G", 70e12),
    ("V100 PCIe", 112e12),
    ("V100", 125e12),
    ("T4", 65e12),
    ("RTX 6000 Ada", 364e12),
    ("RTX A6000", 155e12),
    ("RTX 4090", 165e12),
    ("RTX 3090", 71e12),
    ("MI300X", 1307e12),
)


@dataclass(frozen=True, slots=True)
class ModelFlops:
    """Holds what determines the operations of a step, and the speed of the device that does them.

    `weights` are those that every token is multiplied with, `attention` the widths of all layers' attention (heads x head size)
    added up. `peak` is in operations per second of one device; None if that isn't known.
    """

    weights: int
    attention: int
    peak: float | None = None

    def training(self, lengths: Iterable[int]) -> float:
        """Counts the operations to train on sequences of these lengths in tokens: forward and backward, without any recomputation.

        6 for each weight and token (Kaplan et al. 2020, arXiv:2001.08361, section 2.1), and for attention 6 x width x length^2: half
        of PaLM's 12 (Chowdhery et al. 2022, arXiv:2204.02311, appendix B), since a token sees none after it.
        """
        tokens = squares = 0
        for length in lengths:
            tokens, squares = tokens + length, squares + length * length
        return 6.0 * self.weights * tokens + 6.0 * self.attention * squares

    def utilisation(self, lengths: Iterable[int], seconds: float, devices: int) -> float | None:
        """Computes the share of the devices' peak that training took (MFU: PaLM, appendix B).

        None if the peak isn't known or no time has passed.
        """
        if self.peak is None or seconds <= 0:
            return None
        return self.training(lengths) / (seconds * devices * self.peak)


def weights_in_use(total: int, embedding: int, experts: int, routed: float, *, tied: bool) -> int:
    """Counts those of `total` weights that a token is multiplied with.

    The input `embedding` is only looked up, unless it is `tied` to the output. Of `experts` weights each token uses a share `routed`.
    """
    return round(total - (0 if tied else embedding) - experts * (1.0 - routed))


def peak_flops(device: str) -> float | None:
    """Returns the dense half-precision operations per second of the device that torch names so; None if not known, or for a MIG part."""
    words = _words(device)
    if "MIG" in words:
        return None  # a part of a device
    return next((peak for name, peak in _PEAKS if words >= _words(name)), None)


def _words(name: str) -> set[str]:
    return set(re.split(r"[\s-]+", name.upper()))
