"""Chooses the attention and the head that a model trains with: those that cost less where its architecture allows them."""

from __future__ import annotations

import copy
import sys
from typing import Any

import numpy as np
import structlog
import torch
from torch import nn

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.samples import GeneratedSample
from longboat_runtime.trainer import attention, fused_head
from longboat_runtime.trainer.batch import WeightedSegment, build_batch, token_sample
from longboat_runtime.trainer.forward import response_logprobs
from longboat_runtime.trainer.platform import Platform

log = structlog.get_logger()

# The cheapest first. Eager is what the architecture's authors wrote, but holds heads x longest x longest scores of every sample.
IMPLEMENTATIONS = (attention.NAME, "sdpa", "eager")

# Log-probs of the same tokens that were computed in another way differ by rounding only; this is float32.
TOLERANCE = 1e-3
# The norm of the difference of two heads' results, or of their gradients, by the norm: rounding again.
HEAD_TOLERANCE = 1e-4

# The small copy of a model.
_LAYERS = 4
_WIDTH = 16
_VOCABULARY = 64
# Shorter than the samples that are compared, so that it matters where attention ends.
_WINDOW = 3
_WINDOWS = ("sliding_window", "attention_chunk_size")
_WIDTHS = ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "ffn_hidden_size")
_VOCABULARIES = ("vocab_size", "vocab_size_per_layer_input")
_SPECIAL_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")
# What a library raises where an architecture can't be built small, or can't be given another attention.
_NOT_POSSIBLE = (
    NotImplementedError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


def choose_attention(config: Any, platform: Platform) -> str:
    """Chooses the first of IMPLEMENTATIONS with which samples that share a forward pass have the log-probs that they have alone.

    `config` is the model's; its weights aren't needed. Decided on a small model of the same architecture, with a small vocabulary
    but the same kinds of layers, positions, windows and caps, and weights so large that all of these matter. Guards
    against layers that pass information along the sequence by other means than attention, and against attention that is more
    than a scaled product. If no small model can be built or run it is `eager`: padding is on the right, where no causal model
    looks. Raises SpecProblem if with each of them some log-prob differs by TOLERANCE or more.
    """
    attention.register()
    try:
        small = _small_config(config)
        alone = torch.cat([_single_logprobs(_build(small, "eager"), sample) for sample in _samples()])
    except _NOT_POSSIBLE as error:
        log.warning("no small model of this architecture runs", architecture=config.model_type, error=repr(error))
        return "eager"
    for name in IMPLEMENTATIONS:
        difference = _difference(small, name, alone, platform)
        if difference < TOLERANCE:
            return name
    raise SpecProblem(
        Reason.MODEL_INVALID,
        "spec.model.path",
        f"the architecture {config.model_type} can't be trained: log-probs of samples in one batch differ from those of single "
        f"ones by {difference:.2g}; use a model whose tokens see only those before them",
    )


def head_can_be_fused(config: Any, platform: Platform) -> bool:
    """Whether `fused_head.FusedHead` computes the log-probs and entropies, and their gradients, that the model's own head gives.

    `config` is the model's; its weights aren't needed. Decided on a small model like the attention. Guards against models that change
    logits after their head, by a factor or a soft cap: what they get from the fused one isn't logits.
    """
    try:
        model = _build(_small_config(config), "eager")
        if not fused_head.is_plain(model.get_output_embeddings()):
            return False
        setattr(model, fused_head.ROW_BYTES, 1)
        own, fused = (_head_results(model, limit, platform) for limit in (sys.maxsize, 0))
    except _NOT_POSSIBLE as error:
        log.warning(
            "the fused head runs with no small model of this architecture",
            architecture=config.model_type,
            error=repr(error),
        )
        return False
    # A NaN is no equality either.
    return all(bool((a - b).norm() <= HEAD_TOLERANCE * a.norm()) for a, b in zip(own, fused, strict=True))


def _head_results(model: nn.Module, largest_logits: int, platform: Platform) -> list[torch.Tensor]:
    """Computes log-probs, entropies, and the gradient of a weighted sum of both by each weight that has one."""
    model.zero_grad()
    batch = build_batch([WeightedSegment(sample, 0.0, 1.0) for sample in _samples()], torch.device("cpu"), packed=False)
    logprobs, entropies = response_logprobs(
        model, batch, 0.7, platform=platform, entropies=True, largest_logits=largest_logits
    )
    (logprobs @ torch.linspace(-1.0, 1.0, len(logprobs)) + entropies.sum()).backward()
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    return [logprobs.detach(), entropies.detach(), *gradients]


def _difference(config: Any, name: str, alone: torch.Tensor, platform: Platform) -> float:
    """Returns the largest difference of any log-prob from `alone`; infinite for NaN, or if no model runs with the attention `name`."""
    packed = name == attention.NAME
    try:
        model = _build(config, name)
        batch = build_batch(
            [WeightedSegment(sample, 0.0, 1.0) for sample in _samples()], torch.device("cpu"), packed=packed
        )
        with torch.no_grad():
            together, _ = response_logprobs(model, batch, platform=platform)
    except _NOT_POSSIBLE:
        return float("inf")
    return float((together - alone).abs().max().nan_to_num(float("inf")))


def _small_config(config: Any) -> Any:
    """Returns a copy of `config` for a small text model: two heads, a small vocabulary, and layers few and narrow, but of every kind.

    Heads keep their size, since positions depend on it.
    """
    config = copy.deepcopy(config.get_text_config())
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    count = min(layers, max(_LAYERS, _until_every_kind(config, layers)))
    for name, value in list(vars(config).items()):
        if isinstance(value, list) and len(value) == layers:
            setattr(config, name, value[:count])
    config.num_hidden_layers = count
    grouped = getattr(config, "num_key_value_heads", None) not in (None, heads)
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    config.num_attention_heads, config.hidden_size = 2, 2 * size
    if hasattr(config, "num_key_value_heads"):
        config.num_key_value_heads = 1 if grouped else 2
    for name in _VOCABULARIES:
        # As many as the samples use: of a smaller vocabulary they would name tokens that it doesn't have.
        if isinstance(getattr(config, name, None), int):
            setattr(config, name, _VOCABULARY)
    for names, limit in ((_WIDTHS, _WIDTH), (_WINDOWS, _WINDOW)):
        for name in names:
            value = getattr(config, name, None)
            if isinstance(value, int):
                setattr(config, name, min(value, limit))
            elif isinstance(value, list):
                setattr(config, name, [min(each, limit) for each in value])
    for name in _SPECIAL_TOKENS:
        setattr(config, name, None)
    return config


def _until_every_kind(config: Any, layers: int) -> int:
    """Counts the layers, from the first on, that it takes to have every kind of layer that the config lists."""
    lists = [value for value in vars(config).values() if isinstance(value, list) and len(value) == layers]
    return max((value.index(kind) + 1 for value in lists for kind in value), default=1)


def _build(config: Any, name: str) -> nn.Module:
    """Builds a model with the attention `name` and weights that are the same at every call."""
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=name)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight.normal_(0.0, 2.0 * min(weight.shape[-2:]) ** -0.5)
    return model.eval()


def _samples() -> list[GeneratedSample]:
    tokens = (np.arange(1, 14, dtype=np.int32) * 7) % _VOCABULARY
    return [token_sample(tokens[:5], 2), token_sample(tokens[5:], 2)]


@torch.no_grad()
def _single_logprobs(model: nn.Module, sample: GeneratedSample) -> torch.Tensor:
    """Computes the log-probs of one sample's response tokens by the model's own forward pass."""
    tokens = torch.from_numpy(np.concatenate([sample.prompt_ids, sample.token_ids]).astype(np.int64))
    logprobs = model(input_ids=tokens[None], use_cache=False).logits[0].float().log_softmax(-1)
    start = len(sample.prompt_ids)
    return logprobs[start - 1 : -1].gather(-1, tokens[start:, None])[:, 0]
