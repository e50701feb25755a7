"""Attention within the samples of a packed sequence, for transformers' attention interface.

Transformers' own packing gives SDPA a dense mask over all packed tokens: its cost grows with the square of the bin. Here every
sample attends only to itself, so the cost is that of the samples alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from longboat_runtime.trainer.platform import Platform
from longboat_runtime.trainer.protocol import PACKED

NAME = "longboat_packed"


@dataclass(eq=False)
class Packing:
    """Says how many tokens each sample of a packed sequence has, in order.

    An object of its own: what torch compiles for one packing then serves for all, and `ends` are the same in all layers of a pass.
    """

    lengths: tuple[int, ...]
    platform: Platform
    _ends: dict[torch.device, Tensor] = field(default_factory=dict)

    def ends(self, device: torch.device) -> Tensor:
        """Returns, on `device`, 0 and where each sample ends; (samples + 1), int32."""
        if device not in self._ends:
            self._ends[device] = torch.tensor([0, *accumulate(self.lengths)], dtype=torch.int32, device=device)
        return self._ends[device]


@torch.compiler.disable
def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packing: Packing,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Computes the causal attention of each sample to itself: by one kernel for all samples, or neighbours of equal length together.

    `query` is (1, heads, T, head size), `key` and `value` (1, key heads, T, head size); the lengths of `packing` add up to T. Returns
    (1, T, heads, head size), and None for the scores. Raises NotImplementedError if given a soft cap, sinks, dropout or a mask.
    """
    if softcap is not None or s_aux is not None or dropout or attention_mask is not None:
        raise NotImplementedError("attention with a soft cap, sinks, dropout or a mask of its own")
    if packing.platform.takes_all(query):
        flat = (part[0].transpose(0, 1) for part in (query, key, value))
        return _flash(*flat, packing=packing, scaling=scaling, sliding_window=sliding_window)[None], None
    # Torch's kernels for CPUs read each key head for its whole group of query heads; of those for GPUs only some do.
    grouped = key.shape[1] < query.shape[1]
    if grouped and packing.platform.device != "cpu":
        groups, grouped = query.shape[1] // key.shape[1], False
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    runs = [(length, len(list(run))) for length, run in groupby(packing.lengths)]
    tokens = [length * count for length, count in runs]
    parts = zip(runs, query.split(tokens, 2), key.split(tokens, 2), value.split(tokens, 2), strict=True)
    attended = []
    for run, q, k, v in parts:
        rows = _rows(q, *run), _rows(k, *run), _rows(v, *run)
        attended.append(_causal(*rows, scaling, sliding_window, grouped=grouped).transpose(1, 2))
    return torch.cat([part.reshape(1, -1, *part.shape[2:]) for part in attended], 1), None


def takes_all(query: Tensor) -> bool:
    """Whether one kernel, FlashAttention's, computes samples of different lengths. `query` is (1, heads, T, head size).

    A kernel for each sample and layer would keep a GPU waiting for the host.
    """
    if query.device.type != "cuda" or torch.version.hip is not None:
        return False
    return flash_attends(torch.cuda.get_device_capability(query.device), query.dtype, query.shape[-1])


def flash_attends(capability: tuple[int, int], dtype: torch.dtype, head_size: int) -> bool:
    """Whether torch's FlashAttention, forward and backward, takes heads of this size on NVIDIA's GPUs of this compute capability. Pure.

    In half precision, since Ampere; the largest heads' gradients only where a multiprocessor has the shared memory of an A100.
    """
    largest = 256 if capability in ((8, 0), (9, 0), (10, 0), (10, 3)) else 192
    half = dtype in (torch.bfloat16, torch.float16)
    return half and capability >= (8, 0) and head_size <= largest and head_size % 8 == 0


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    packing: Packing,
    scaling: float | None,
    sliding_window: int | None,
) -> Tensor:
    """Computes attention by one kernel: `query` and the result are (T, heads, head size), `key` and `value` (T, key heads, head size)."""
    from torch.nn.attention.varlen import varlen_attn

    ends, longest = packing.ends(query.device), max(packing.lengths)
    window = -1 if sliding_window is None or longest <= sliding_window else sliding_window - 1
    return varlen_attn(
        query,
        key,
        value,
        ends,
        ends,
        longest,
        longest,
        scale=scaling,
        window_size=(window, 0),
        enable_gqa=key.shape[1] < query.shape[1],
    )


def _rows(part: Tensor, length: int, count: int) -> Tensor:
    """Returns `count` samples of one length, (1, heads, count x length, head size), as (count, heads, length, head size)."""
    return part[0].unflatten(1, (count, length)).transpose(0, 1)


def _causal(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, sliding_window: int | None, *, grouped: bool
) -> Tensor:
    length = query.shape[2]
    if sliding_window is None or length <= sliding_window:
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=grouped)
    position = torch.arange(length, device=query.device)
    distance = position[:, None] - position[None, :]
    visible = (distance >= 0) & (distance < sliding_window)
    return scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=scaling, enable_gqa=grouped)


def packs(model: nn.Module) -> bool:
    """Whether the model takes packed samples; else they are padded."""
    return bool(model.config.get_text_config()._attn_implementation == NAME)


def described(config: Any) -> str:
    """Says in words how a model of `config`, built for training, takes samples."""
    chosen = config.get_text_config()._attn_implementation
    if chosen == NAME:
        return PACKED
    return f"padded ({chosen}): packed samples of the architecture {config.model_type} aren't known to have the log-probs of single ones"


def register() -> None:
    """Makes `attn_implementation=NAME` known to transformers; a model's forward then needs a `packing`."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, packed_attention)
    AttentionMaskInterface.register(NAME, _no_mask)


def _no_mask(*_args: Any, **_kwargs: Any) -> None:
    """Makes no mask: the lengths say everything."""
