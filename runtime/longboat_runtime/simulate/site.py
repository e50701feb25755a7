"""What a simulated job runs on, and how long its stages take. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longboat_runtime.simulate.curve import StepCurve


@dataclass(frozen=True, slots=True)
class Site:
    """Engines, graders and trainer; times in seconds.

    Each of `engines` runs at most `max_sequences` at once, by `curve`. `latency` passes between the driver and an engine, each way.
    Each of `graders` takes `grading` for a sample. An optimizer step takes `update`, plus `update_token` for each response token
    trained; a publication of weights takes `publish`. Prompts have `prompt_tokens`. `flat` is the share of prompts whose responses
    all get the same grade. Raises ValueError for impossible values.
    """

    curve: StepCurve
    engines: int = 1
    max_sequences: int = 256
    latency: float = 0.0
    graders: int = 1
    grading: float = 0.0
    update: float = 0.0
    update_token: float = 0.0
    publish: float = 0.0
    prompt_tokens: int = 0
    flat: float = 0.0

    def __post_init__(self) -> None:
        if min(self.engines, self.max_sequences, self.graders) < 1:
            raise ValueError(f"a site needs an engine, a sequence in it and a grader: {self}")
        times = (self.latency, self.grading, self.update, self.update_token, self.publish)
        if min(*times, *self.curve.seconds, self.prompt_tokens) < 0 or not 0 <= self.flat <= 1:
            raise ValueError(f"times, prompt tokens and shares can't be negative: {self}")

    @property
    def names(self) -> Sequence[str]:
        """Of the engines."""
        return [f"engine-{number}" for number in range(self.engines)]
