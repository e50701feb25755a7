"""Decides what the loss is multiplied by in Float16, so that small gradients don't vanish. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from longboat_crds.model import DType

FIRST_SCALE = 2.0**16
# Nothing is gained beyond it: the smallest gradient that Float16 can hold is then 2^-48. Without a bound, a job whose gradients are
# 0 would raise it until it is infinite.
LARGEST_SCALE = 2.0**24
# A gradient that still overflows at a thousandth of the scale is not finite for another reason.
MAX_HALVINGS = 10
# Updates in a row at one scale before the next one is tried at twice that.
GOOD_UPDATES = 200


@dataclass(frozen=True, slots=True)
class LossScale:
    """Dynamic loss scaling (Micikevicius et al., arXiv:1710.03740, section 3.2) with bounds; only Float16 `adapts`.

    `good_updates` are the updates in a row that were made at `value`, counted from 0 again after GOOD_UPDATES.
    """

    value: float
    good_updates: int = 0
    adapts: bool = True

    @classmethod
    def from_dtype(cls, dtype: DType) -> LossScale:
        """Makes the scale of a job's first update. Other formats have the exponents of Float32, and need no scale."""
        return cls(FIRST_SCALE) if dtype is DType.FLOAT16 else cls(1.0, adapts=False)

    def attempts(self) -> Iterator[LossScale]:
        """Yields the scales at which to try one minibatch until its gradient is finite: this one, then each half of the one before.

        There is only one attempt if the scale doesn't adapt. After the last one the minibatch is skipped.
        """
        yield self
        for halvings in range(1, MAX_HALVINGS + 1 if self.adapts else 1):
            yield replace(self, value=self.value / 2.0**halvings, good_updates=0)

    def after_update(self) -> LossScale:
        """Returns the scale of the next update, after one at this scale."""
        if not self.adapts:
            return self
        if self.good_updates + 1 < GOOD_UPDATES:
            return replace(self, good_updates=self.good_updates + 1)
        return replace(self, value=min(self.value * 2.0, LARGEST_SCALE), good_updates=0)

    def after_skip(self) -> LossScale:
        """Returns the scale of the next update, after a minibatch that began at this scale was skipped.

        Its value is unchanged: lower ones didn't help, and would make the gradients of trainable minibatches vanish.
        """
        return replace(self, good_updates=0)
