"""What a step of an engine takes and how much KV cache it has, by its devices: a roofline. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from longboat_runtime.rollout.engine import RESERVE
from longboat_runtime.rollout.throughput import EngineModel

# Cells of an engine's model: a step is linear in sequences and in tokens between them, except where compute takes over.
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 144, 160, 176, 192, 208, 224, 240, 256)


@dataclass(frozen=True, slots=True)
class Roofline:
    """Devices of one kind and the model that they serve; bytes, seconds and operations.

    A device has `memory`, reads `bandwidth` bytes and computes `compute` operations a second. The model has `weights` bytes, `kv_token`
    bytes of keys and values for each token in context, and `token_operations` for each token computed. A step takes `latency` whatever it
    does (scheduling, launches); among devices the bytes of a ring all-reduce take time, of two of them `all_reduce`.
    """

    memory: float
    bandwidth: float
    compute: float
    weights: float
    kv_token: float
    token_operations: float
    latency: float
    all_reduce: float

    def kv_tokens(self, devices: int) -> int:
        """Returns how many tokens an engine's KV cache holds: weights are split over its devices, a tenth of each of which is a reserve."""
        return int((devices * self.memory * (1 - 1 / RESERVE) - self.weights) / self.kv_token)

    def step_seconds(self, devices: int, sequences: int, tokens: float, computed: int = 0) -> float:
        """Returns the seconds of a step that draws a token for each of `sequences`, and computes `computed` other tokens.

        The sequences have `tokens` in context together.

        Besides latency and all-reduce, decoding reads weights and KV cache, or computes, whichever takes longer; prompts, and sequences
        that are computed again after a preemption, take compute on top.
        """
        read = (self.weights + self.kv_token * tokens) / (devices * self.bandwidth)
        decoded = self.token_operations * sequences / (devices * self.compute)
        return (
            self.latency
            + self.all_reduce * 2 * (devices - 1) / devices
            + max(read, decoded)
            + self.prefill_seconds(devices) * computed
        )

    def prefill_seconds(self, devices: int) -> float:
        """Returns the seconds of each token of a prompt, or of a sequence that is computed again."""
        return self.token_operations / (devices * self.compute)

    def scaled(self, *, sequences: float, tokens: float, pace: float) -> Roofline:
        """Returns a roofline for a smaller job: each sequence stands for `sequences`, each token, and so each step, for `tokens`.

        A second stands for 1 / `pace`: a round of the smaller job takes `pace` times the seconds of the one it stands for.
        """
        slower = pace * tokens
        return replace(
            self,
            bandwidth=self.bandwidth / slower,
            compute=self.compute / slower,
            kv_token=self.kv_token * sequences * tokens,
            token_operations=self.token_operations * sequences,
            latency=self.latency * slower,
            all_reduce=self.all_reduce * slower,
        )

    def engine_model(self, devices: int, longest: int) -> EngineModel:
        """Makes the table that planner and simulator work with, for sequences of up to `longest` tokens."""
        contexts = tuple(max(1, longest * part // 4) for part in range(5))
        return EngineModel(
            self.kv_tokens(devices),
            self.prefill_seconds(devices),
            SEQUENCES,
            contexts,
            tuple(
                tuple(self.step_seconds(devices, sequences, sequences * context) for context in contexts)
                for sequences in SEQUENCES
            ),
        )
