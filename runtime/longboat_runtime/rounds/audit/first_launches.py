"""The law of the lengths of first launches, as far as it is known. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from longboat_runtime.rounds.audit.survival import Bools, Floats


@dataclass(frozen=True, slots=True)
class FirstLaunches:
    """Atoms [n] of the law: `masses` of the prompt numbered `prompts`, 1 per prompt.

    An atom is at `near` tokens at least, at `far` tokens at most and probably at `likely` tokens. The three differ only where it is
    `modelled`: no attempt of the same prompt shows where it ends.
    """

    prompts: npt.NDArray[np.intp]
    near: Floats
    likely: Floats
    far: Floats
    masses: Floats
    modelled: Bools

    @property
    def modelled_share(self) -> float:
        return float(self.masses[self.modelled].sum() / self.masses.sum())


def join(parts: Sequence[FirstLaunches]) -> FirstLaunches:
    """All atoms of `parts`, whose prompts are numbered alike, but for those without mass."""
    columns = zip(*((_.prompts, _.near, _.likely, _.far, _.masses, _.modelled) for _ in parts), strict=True)
    joined = [np.concatenate(column) for column in columns]
    kept = joined[4] > 0
    return FirstLaunches(*(column[kept] for column in joined))


def together(laws: Sequence[FirstLaunches]) -> FirstLaunches:
    """The law of the prompts of all `laws`, numbered on."""
    first = np.cumsum([0, *(law.prompts.max() + 1 for law in laws)])
    return join([replace(law, prompts=law.prompts + offset) for law, offset in zip(laws, first, strict=False)])
