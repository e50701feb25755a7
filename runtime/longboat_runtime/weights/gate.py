"""The gate before an engine may serve a publication: right bytes, all parameters, equal log-probs. Pure.

Invariant 7 of the design. The checksum catches lost, stale and damaged data; the parity probe catches an engine that has
the right data and computes with something else (layers not reloaded, a stale repacked copy, a stale cache).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from longboat_runtime.samples import SampleId

# Largest difference between an engine's and the trainer's log-prob of one probe token.
FLOAT32_BOUND = 1e-4

# Distance from 1 to the next larger number.
EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10}


class PublicationRefused(Exception):
    """An engine's weights are not the published ones: it serves nothing until it has passed a later publication.

    `lost` are the samples that ran in it: tokens drawn since the update came from unverified weights, so none is handed out.
    """

    def __init__(self, reason: str, lost: Sequence[SampleId] = ()) -> None:
        super().__init__(reason, tuple(lost))
        self.reason = reason
        self.lost = tuple(lost)

    def __str__(self) -> str:
        return self.reason


def check_receipts(receipts: Sequence[Mapping[str, Any]], checksum: str) -> None:
    """Each worker's receipt (`checksum`, `missing`) must show the published checksum and no parameter left out."""
    for rank, receipt in enumerate(receipts):
        if receipt["checksum"] != checksum:
            raise PublicationRefused(
                f"worker {rank} received weights of checksum {receipt['checksum']}, published were {checksum}"
            )
        if missing := receipt["missing"]:
            raise PublicationRefused(
                f"worker {rank} got nothing for {len(missing)} parameters, among them {', '.join(missing[:3])}"
            )


def parity(engine: Sequence[float], trainer: Sequence[float]) -> float:
    """The largest |engine - trainer| over the probe's log-probs; infinite if one is not a number."""
    if len(engine) != len(trainer):
        raise ValueError(f"{len(engine)} log-probs of the engine against {len(trainer)} of the trainer")
    differences = [abs(a - b) for a, b in zip(engine, trainer, strict=True)]
    return max((math.inf if math.isnan(d) else d for d in differences), default=0.0)


def parity_bound(dtype: str, calibrated: float | None) -> float:
    """How far apart engine and trainer may be on the probe.

    float32: 1e-4 always (measured between vLLM and PyTorch on equal weights: 1e-6). Half precisions differ by the order of
    their sums, which depends on the model: an engine's first publication, whose bytes the checksum has shown to be the
    trainer's, calibrates. It may differ by up to 128 epsilon (1.0 for bfloat16, 0.125 for float16), since more is another
    model; after that the bound is three times what it measured, but between 4 and 128 epsilon.
    """
    if dtype == "float32":
        return FLOAT32_BOUND
    epsilon = EPSILON[dtype]
    if calibrated is None:
        return 128 * epsilon
    return min(max(3 * calibrated, 4 * epsilon), 128 * epsilon)


def check_parity(measured: float, dtype: str, calibrated: float | None) -> None:
    """Refuses an engine whose log-probs are further from the trainer's than `parity_bound`."""
    bound = parity_bound(dtype, calibrated)
    if not measured <= bound:
        raise PublicationRefused(
            f"log-probs of the probe differ by {measured:.3g} from the trainer's, allowed are {bound:.3g}"
        )
