"""Describes what a simulated job runs on, and how long its stages take. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longboat_runtime.simulate.curve import StepCurve
from longboat_runtime.simulate.shapes import Shapes


@dataclass(frozen=True, slots=True)
class Site:
    """Engines, graders and trainer; times in seconds.

    Engines are either `engines` of one kind with KV memory without end, whose steps take what `curve` says, or those of `shapes`. Each
    runs at most `max_sequences` at once. `latency` passes between the driver and an engine, each way. `max_tokens` is the
    limit of responses that planners of shapes are told. Each of `graders` takes `grading` for a sample. An optimizer step takes
    `update`, plus `update_token` for each response token trained, but at least two `latency`; a publication of weights takes `publish`.
    With `chunk_tokens`, groups of at least so many tokens, prompts included, are trained while their round is open; each such chunk takes
    `chunk`, and its tokens as in a step.
    At most `slots` episodes play at once: those that fit into a pod of the environment's pool, times its pods.
    Prompts have `prompt_tokens`. `flat` is the chance that all responses to a prompt get the same grade. Raises ValueError for most
    impossible values.
    """

    curve: StepCurve | None = None
    engines: int = 1
    max_sequences: int = 256
    max_tokens: int = 1_000_000
    latency: float = 0.0
    graders: int = 1
    grading: float = 0.0
    update: float = 0.0
    update_token: float = 0.0
    chunk_tokens: int | None = None
    chunk: float = 0.0
    publish: float = 0.0
    prompt_tokens: int = 0
    flat: float = 0.0
    shapes: Shapes | None = None
    slots: int | None = None

    def __post_init__(self) -> None:
        if min(self.engines, self.max_sequences, self.graders) < 1:
            raise ValueError(f"a site needs an engine, a sequence in it and a grader: {self}")
        if self.slots is not None and self.slots < 1:
            raise ValueError(f"slots: at least 1 episode must be able to play at once: {self}")
        if (self.curve is None) == (self.shapes is None) or (self.shapes is not None and self.engines != 1):
            raise ValueError("a site has a curve and a number of engines, or shapes")
        if self.shapes is not None and self.prompt_tokens < 1:
            raise ValueError("prompt_tokens: with shapes, prompts take KV cache and have to be 1 token long or more")
        times = (self.latency, self.grading, self.update, self.update_token, self.chunk, self.publish)
        if min(*times, *(self.curve.seconds if self.curve else ()), self.prompt_tokens) < 0 or not 0 <= self.flat <= 1:
            raise ValueError(f"times, prompt tokens and shares can't be negative: {self}")

    @property
    def names(self) -> Sequence[str]:
        """Names of the engines by `curve`."""
        return [f"engine-{number}" for number in range(self.engines)]
