"""One forward pass through a causal language model."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.functional import pad

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.trainer import fused_head
from longboat_runtime.trainer.attention import Packing
from longboat_runtime.trainer.batch import SampleBatch
from longboat_runtime.trainer.logprobs import CHUNK_ROWS, ChosenLogprobs
from longboat_runtime.trainer.platform import Platform

# The mark of a model whose layers are compiled.
COMPILED = "_longboat_compiled"


def response_logprobs(
    model: nn.Module,
    batch: SampleBatch,
    temperature: float = 1.0,
    *,
    platform: Platform,
    entropies: bool = False,
    largest_logits: int = fused_head.LARGEST_LOGITS,
) -> tuple[Tensor, Tensor]:
    """Computes log-probabilities (K) of the response tokens, given the tokens before them in their own sample, and entropies (K).

    Entropies have a gradient only if `entropies`. A packed batch needs a model with `attention.NAME`. The model's head runs only on the K
    positions that predict a response token. On CPUs their number, and that of a packed batch's tokens, is padded to a `recurring_size`.
    Logits of more than `largest_logits` bytes are never whole, if the model has the mark `fused_head.ROW_BYTES`.
    """
    input_ids, predicting, keywords = batch.input_ids, batch.predicting, dict[str, Any]()
    recurs = platform.device == "cpu"
    if batch.lengths is not None:
        assert batch.position_ids is not None
        keywords = {"position_ids": batch.position_ids, "packing": Packing(batch.lengths, platform)}
        missing = recurring_size(input_ids.shape[1]) - input_ids.shape[1] if recurs else 0
        if missing:
            # As a sample of its own, from which nothing is predicted.
            input_ids = pad(input_ids, (0, missing))
            positions = torch.cat([batch.position_ids, torch.arange(missing)[None]], 1)
            keywords = {"position_ids": positions, "packing": Packing((*batch.lengths, missing), platform)}
    compiled = getattr(model, COMPILED, False)
    if fused_head.replaces(model, len(predicting), largest_logits):
        head = model.get_output_embeddings()
        fused = fused_head.in_place_of(head, batch.targets, temperature, compiled=compiled, entropies=entropies)
        with _head_at(model, predicting), fused:
            logprobs, entropy = model(input_ids=input_ids, use_cache=False, **keywords).logits[0].unbind(-1)
        return logprobs, entropy if entropies else entropy.detach()
    if recurs:
        predicting = pad(predicting, (0, recurring_size(len(predicting)) - len(predicting)))
    with _head_at(model, predicting):
        output = model(input_ids=input_ids, use_cache=False, **keywords)
    logits = output.logits[0, : len(batch.targets)]
    logprobs, entropy = ChosenLogprobs.apply(logits, batch.targets, temperature, CHUNK_ROWS, compiled, entropies)
    return logprobs, entropy


def compiles(wanted: bool | None, device: str) -> bool:
    """Whether a model on `device` is compiled; `wanted` None means only on GPUs. Pure."""
    return device == "cuda" if wanted is None else wanted


def check_compiler(device: str) -> None:
    """Raises SpecProblem if torch lacks the compiler that it runs for a model on `device`; it would itself only at the first step.

    For GPUs Triton compiles with C, for CPUs torch with C++.
    """
    variable, commands = ("CC", ("gcc", "clang", "cc")) if device == "cuda" else ("CXX", ("g++",))
    named = shlex.split(os.environ.get(variable, ""))[:1]  # options may follow
    if not any(map(shutil.which, named or commands)):
        language = "C" if device == "cuda" else "C++"
        raise SpecProblem(
            Reason.SPEC_INVALID,
            "spec.trainer.compile",
            f"there is no {language} compiler ({(named or commands)[0]}) in the trainer's pod; set it to false, or use an image with one",
        )


def compile_layers(model: nn.Module, layers: Sequence[nn.Module]) -> None:
    """Has torch compile the forward pass of `layers`, which `model` consists of, and the log-probs; at their first use.

    Most of a layer's operations (norms, activations, positions) only read and write memory, and a compiled layer does several of them
    in one pass. Once for any number of tokens, and once for all layers of a kind. Hooks, with which FSDP2 gathers weights, and
    gradient checkpointing stay outside.
    """
    for layer in layers:
        layer.forward = torch.compile(layer.forward, dynamic=True)
    setattr(model, COMPILED, True)


def recurring_size(size: int) -> int:
    """Returns the least of sixteen sizes per doubling that isn't below `size`: at most a sixteenth more. Pure.

    oneDNN compiles each product for the sizes of its matrices, which takes as long as several products of a small model; with the
    sizes that bins happen to have it would in every step.
    """
    unit = 1 << max(0, size.bit_length() - 5)
    return -(-size // unit) * unit


@contextmanager
def _head_at(model: nn.Module, positions: Tensor) -> Iterator[None]:
    """Restricts the model's head, within the block, to K positions of the flattened batch, (1, K, hidden size): it gives their logits.

    Transformers' `logits_to_keep` takes the same positions of every row, and not every architecture has it.
    """

    def take(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden, *others = inputs
        return hidden.flatten(0, 1)[positions][None], *others

    hook = model.get_output_embeddings().register_forward_pre_hook(take)
    try:
        yield
    finally:
        hook.remove()


@torch.no_grad()
def frozen_logprobs(model: nn.Module, batch: SampleBatch, temperature: float = 1.0, *, platform: Platform) -> Tensor:
    """Computes `response_logprobs` without gradient or entropies.

    FSDP keeps the weights of its outermost unit gathered from a forward pass until the backward pass frees them. Without one they
    would stay, and later passes would not see new values of the shards.
    """
    logprobs, _ = response_logprobs(model, batch, temperature, platform=platform)
    if isinstance(model, FSDPModule):
        model.reshard()
    return logprobs
