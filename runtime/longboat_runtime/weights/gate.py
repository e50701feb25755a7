"""The gate before an engine may serve a publication: right bytes, all parameters, equal log-probs. Pure.

After each publication an engine serves only if its weight checksum is the published one and its log-probs equal the trainer's on a
fixed probe. The checksum catches lost, stale and damaged data; the parity probe catches an engine that received the right data but
computes with something else (layers not reloaded, a stale repacked copy, a stale cache).
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

# Largest relative difference that rounding explains between a published tensor and an engine's, and how many tensors are named.
TENSOR_BOUND = {"float32": 1e-3, "bfloat16": 0.05, "float16": 0.01}
WORST_TENSORS = 3


class UpdateFailed(Exception):
    """An engine did not get the published weights: it serves nothing until an update succeeds.

    `lost` are the samples that ran in it: tokens drawn since the update came from unverified weights, so none is handed out.
    """

    def __init__(self, reason: str, lost: Sequence[SampleId] = ()) -> None:
        super().__init__(reason, tuple(lost))
        self.reason = reason
        self.lost = tuple(lost)

    def __str__(self) -> str:
        return self.reason


class PublicationRefused(UpdateFailed):
    """An engine has received a publication, but its weights are not the published ones; or it can't score the probe."""


class ParityExceeded(PublicationRefused):
    """An engine has received all bytes, but its log-probs are not the trainer's."""

    def naming(self, differences: Sequence[tuple[str, float]], dtype: str) -> ParityExceeded:
        """Returns a copy of this error that also names the tensors that differ most (relatively), or says that none compared does.

        Without `differences` it adds nothing.
        """
        differing = [difference for difference in differences if not difference[1] <= TENSOR_BOUND[dtype]]
        differing.sort(key=lambda difference: math.inf if math.isnan(difference[1]) else difference[1], reverse=True)
        worst = ", ".join(f"{name} ({d:.2g})" for name, d in differing[:WORST_TENSORS])
        detail = (
            f"{len(differing)} of {len(differences)} tensors compared are not the published ones, furthest are {worst}"
        )
        if not differing:
            detail = f"all {len(differences)} tensors that could be compared are the published ones"
        return ParityExceeded(f"{self.reason}; {detail}" if differences else self.reason, self.lost)


class FetchFailed(UpdateFailed):
    """An engine could not fetch all of a publication's data. That says nothing about the engine: it may try again."""


def check_received(errors: Sequence[str | None]) -> None:
    """Raises FetchFailed if a worker has not received what was broadcast; `errors` are the workers' errors, None for those that have."""
    for rank, error in enumerate(errors):
        if error is not None:
            raise FetchFailed(f"worker {rank} has not received a bucket: {error}")


def check_receipts(receipts: Sequence[Mapping[str, Any]], checksum: str) -> None:
    """Raises PublicationRefused unless every worker's receipt has the published `checksum` and nothing is `missing`.

    To be called once the last bucket has come: only then is the checksum known.
    """
    for rank, receipt in enumerate(receipts):
        if receipt["checksum"] != checksum:
            raise PublicationRefused(
                f"worker {rank} received weights of checksum {receipt['checksum']}, the publication has {checksum}"
            )
        if missing := receipt["missing"]:
            raise PublicationRefused(
                f"worker {rank} got nothing, or only a part, for {len(missing)} weights or buffers, among them {', '.join(missing[:3])}"
            )


def parity(engine: Sequence[float], trainer: Sequence[float]) -> float:
    """Computes the largest |engine - trainer| over the probe's log-probs; infinite if one is NaN.

    Raises ValueError unless both sides have equally many.
    """
    if len(engine) != len(trainer):
        raise ValueError(f"{len(engine)} log-probs of the engine against {len(trainer)} of the trainer")
    differences = [abs(a - b) for a, b in zip(engine, trainer, strict=True)]
    return max((math.inf if math.isnan(d) else d for d in differences), default=0.0)


def parity_bound(dtype: str, calibrated: float | None) -> float:
    """Returns how far apart engine and trainer may be on the probe.

    float32: 1e-4 always (measured between vLLM and PyTorch on equal weights: 1e-6). Half precisions differ by the order of
    their sums, which depends on the model. So a first publication, whose bytes the checksum has shown to be the trainer's,
    calibrates all engines of a number format and size (`calibration_key`). It may differ by up to 128 epsilon (1.0 for
    bfloat16, 0.125 for float16), since more means another model; after that the bound is three times `calibrated`, what it
    measured, but between 4 and 128 epsilon.
    """
    if dtype == "float32":
        return FLOAT32_BOUND
    epsilon = EPSILON[dtype]
    if calibrated is None:
        return 128 * epsilon
    return min(max(3 * calibrated, 4 * epsilon), 128 * epsilon)


def calibration_key(dtype: str, tensor_parallel: int) -> str:
    """Returns the name of the calibration that engines of one number format and one size share.

    They sum alike, so what one measured holds for the others.
    """
    return f"{dtype}/{tensor_parallel}"


def check_parity(measured: float, dtype: str, calibrated: float | None) -> None:
    """Refuses an engine whose log-probs are further from the trainer's than `parity_bound`."""
    bound = parity_bound(dtype, calibrated)
    if not measured <= bound:
        raise ParityExceeded(
            f"log-probs of the probe differ by {measured:.3g} from the trainer's, {bound:.3g} is allowed"
        )
