"""Responses of the quickstart's model by weights of any age, with the log-probs of their tokens: what an engine gives, in one process.

The model is a Qwen3 without biases whose prompts all have the same number of tokens, so a batch decodes in step and needs no padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from longboat_runtime.samples import FloatArray, IntArray

# Once this few rows of the cache still run, they are copied together.
COMPACT_AT = 0.7


class Sampler:
    """Draws at temperature 1 until the end token or `longest` tokens. `weights` are those of a Hugging Face directory, float32."""

    def __init__(self, config: Any, weights: Mapping[str, Tensor], longest: int) -> None:
        self._config, self._weights, self._longest = config, weights, longest
        self._end = config.eos_token_id
        self._size = config.head_dim
        positions = torch.arange(config.max_position_embeddings, dtype=torch.float32)
        halves = torch.arange(0, self._size, 2, dtype=torch.float32) / self._size
        angles = torch.outer(positions, config.rope_parameters["rope_theta"] ** -halves).repeat(1, 2)
        self._cos, self._sin = angles.cos(), angles.sin()

    @torch.inference_mode()
    def draw(self, prompts: Sequence[Sequence[int]], generator: torch.Generator) -> list[tuple[IntArray, FloatArray]]:
        """Draws one response to each prompt, in order; returns the tokens and log-probs of each."""
        config, rows = self._config, len(prompts)
        ids = torch.tensor(prompts, dtype=torch.int64)
        length, room = ids.shape[1], ids.shape[1] + self._longest
        shape = (config.num_hidden_layers, 2, rows, config.num_key_value_heads, room, self._size)
        cache = torch.empty(shape)
        running = torch.arange(rows)
        tokens = torch.zeros(rows, self._longest, dtype=torch.int64)
        logprobs = torch.zeros(rows, self._longest)
        lengths = torch.full((rows,), self._longest)
        done = torch.zeros(rows, dtype=torch.bool)
        for position in range(self._longest):
            distribution = self._forward(ids, cache, length - ids.shape[1]).log_softmax(-1)
            chosen = (distribution - torch.empty_like(distribution).exponential_(generator=generator).log()).argmax(-1)
            live = running[~done]
            tokens[live, position] = chosen[~done]
            logprobs[live, position] = distribution.gather(-1, chosen[:, None])[:, 0][~done]
            ended = ~done & (chosen == self._end)
            lengths[running[ended]] = position + 1
            done |= ended
            if bool(done.all()):
                break
            if int(done.sum()) > (1 - COMPACT_AT) * len(done):
                running_rows = (~done).nonzero()[:, 0]
                compact = torch.empty((*shape[:2], len(running_rows), *shape[3:]))
                compact[..., :length, :] = cache[:, :, running_rows, :, :length]
                cache, running, chosen, done = compact, running[running_rows], chosen[running_rows], done[running_rows]
            ids = chosen[:, None]
            length += 1
        return [
            (tokens[row, :count].numpy().astype(np.int32), logprobs[row, :count].numpy().copy())
            for row, count in enumerate(lengths.tolist())
        ]

    def _forward(self, ids: Tensor, cache: Tensor, start: int) -> Tensor:
        """Computes the logits (rows, vocabulary) after the last of `ids` (rows, T), which begin at `start`; fills the cache."""
        config, weights = self._config, self._weights
        rows, count = ids.shape
        end = start + count
        cos, sin = self._cos[start:end], self._sin[start:end]
        hidden = weights["model.embed_tokens.weight"][ids]
        groups = config.num_attention_heads // config.num_key_value_heads
        for layer in range(config.num_hidden_layers):
            prefix = f"model.layers.{layer}."
            attended = self._norm(hidden, prefix + "input_layernorm")
            query, key, value = (
                (attended @ weights[f"{prefix}self_attn.{name}_proj.weight"].T)
                .view(rows, count, -1, self._size)
                .transpose(1, 2)
                for name in "qkv"
            )
            query = _rotated(self._norm(query, prefix + "self_attn.q_norm"), cos, sin)
            cache[layer, 0, :, :, start:end] = _rotated(self._norm(key, prefix + "self_attn.k_norm"), cos, sin)
            cache[layer, 1, :, :, start:end] = value
            keys, values = cache[layer, 0, :, :, :end], cache[layer, 1, :, :, :end]
            if count > 1:
                attention = scaled_dot_product_attention(
                    query,
                    keys.repeat_interleave(groups, 1),
                    values.repeat_interleave(groups, 1),
                    is_causal=True,
                )
            else:
                # The query heads of one key head take the place of positions: every one sees all that is in the cache.
                attention = scaled_dot_product_attention(query.view(rows, -1, groups, self._size), keys, values)
                attention = attention.reshape(rows, -1, 1, self._size)
            hidden = (
                hidden
                + attention.transpose(1, 2).reshape(rows, count, -1) @ weights[prefix + "self_attn.o_proj.weight"].T
            )
            inner = self._norm(hidden, prefix + "post_attention_layernorm")
            gate, up = (inner @ weights[f"{prefix}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
            hidden = hidden + (silu(gate) * up) @ weights[prefix + "mlp.down_proj.weight"].T
        return self._norm(hidden[:, -1], "model.norm") @ weights["model.embed_tokens.weight"].T

    def _norm(self, values: Tensor, name: str) -> Tensor:
        return rms_norm(values, values.shape[-1:], self._weights[name + ".weight"], self._config.rms_norm_eps)


def _rotated(values: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = values.chunk(2, -1)
    return values * cos + torch.cat([-second, first], -1) * sin
