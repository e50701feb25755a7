"""Seeds of tokens on CPUs, drawn many at a time.

vLLM's sampler for CPUs draws a seed for every token from the request's generator, with three calls of torch for each sequence: more than
all arithmetic in a step of a small model. The same seeds come out of one call for many.

Importing this module makes vLLM's sampler draw so; its workers import it with their extension, before they make their sampler.
"""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakKeyDictionary

import torch
from torch import Generator, Tensor
from vllm.platforms import current_platform
from vllm.v1.sample.ops import topk_topp_sampler
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

# Seeds of one call; a request that ends leaves the rest unused.
DRAWN = 64

# The seeds that each generator has drawn and not given yet. A request keeps its generator from its first token to its last.
_seeds: WeakKeyDictionary[Generator, Iterator[int]] = WeakKeyDictionary()


def seed(generator: Generator) -> int:
    """The next seed: what `torch.randint(0, 2**31, (1,), generator=generator)` would give next if nothing else drew from it."""
    if (drawn := _seeds.get(generator)) is not None and (found := next(drawn, None)) is not None:
        return found
    _seeds[generator] = drawn = iter(torch.randint(0, 2**31, (DRAWN,), generator=generator, dtype=torch.long).tolist())
    return next(drawn)


_by_vllm = TopKTopPSampler.forward_cpu


def _forward(
    self: TopKTopPSampler, logits: Tensor, generators: dict[int, Generator], k: Tensor | None, p: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Gives what vLLM's `TopKTopPSampler.forward_cpu` gives."""
    if self.use_fp64_gumbel:
        return _by_vllm(self, logits, generators, k, p)
    logits = topk_topp_sampler.apply_top_k_top_p(logits, k, p)
    kept = None
    if self.logprobs_mode == "processed_logits":
        kept = logits
    elif self.logprobs_mode == "processed_logprobs":
        kept = logits.log_softmax(dim=-1, dtype=torch.float32)
    rows = logits.shape[0]
    seeds = [0] * rows if len(generators) == rows else torch.randint(0, 2**31, (rows,), dtype=torch.long).tolist()
    for row, generator in generators.items():
        seeds[row] = seed(generator)
    return torch.ops._C.fused_gumbel_argmax(logits.float(), torch.tensor(seeds, dtype=torch.long)), kept


if current_platform.is_cpu():
    current_platform.import_kernels()
    TopKTopPSampler.forward_cpu = _forward
