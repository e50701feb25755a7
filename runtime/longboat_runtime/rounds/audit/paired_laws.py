"""Trained lengths beside those of first launches, prompt by prompt, and how they are resampled. Pure.

Prompts are resampled, not samples: responses to one prompt are alike. A prompt is drawn with both its sides, which are the same
responses wherever the policy changed nothing, so that only what it changed has a spread (Efron & Tibshirani 1993, An introduction
to the bootstrap, chapter 8).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from longboat_runtime.rounds.audit.first_launches import FirstLaunches
from longboat_runtime.rounds.audit.lengths import PromptLengths
from longboat_runtime.rounds.audit.survival import Floats

CONFIDENCE = 0.95
DRAWS = 400


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PairedLaws:
    """Both laws of `count` prompts: first launches, and trained samples as the `prompts` [n] they are of and their `lengths` [n]."""

    count: int
    launched: FirstLaunches
    prompts: npt.NDArray[np.intp]
    lengths: Floats

    @classmethod
    def of(cls, prompts: Sequence[PromptLengths], launched: FirstLaunches) -> PairedLaws:
        numbers = np.repeat(np.arange(len(prompts)), [len(prompt.trained) for prompt in prompts])
        lengths = np.array([length for prompt in prompts for length in prompt.trained], dtype=np.float64)
        return cls(len(prompts), launched, numbers, lengths)

    @property
    def trained(self) -> Floats:
        """Samples trained of each prompt [count]."""
        return np.bincount(self.prompts, minlength=self.count).astype(np.float64)

    def launched_means(self, places: Floats) -> Floats:
        """Mean length of each prompt's first launch [count], its atoms being at `places` [n]."""
        return np.bincount(self.launched.prompts, self.launched.masses * places, self.count).astype(np.float64)

    def draws(self) -> Floats:
        """How often each prompt is in each resample [1 + DRAWS, count]: first the data, then the same draws for the same count."""
        drawn = np.random.default_rng(self.count).multinomial(self.count, np.full(self.count, 1 / self.count), DRAWS)
        return np.concatenate([np.ones((1, self.count)), drawn])
