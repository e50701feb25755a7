"""Traces one rank of a trainer on fake tensors: the code that trains, without files, devices or memory."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from longboat_crds.job import RLJobSpec
from longboat_runtime.model_config import language_model, longest_sequence
from longboat_runtime.plan.compiled import interpreted
from longboat_runtime.plan.fake import FakeMachine, fake_group
from longboat_runtime.plan.figures import Figures, Phase
from longboat_runtime.plan.layers import Shortened, shortened
from longboat_runtime.plan.ledger import Ledger
from longboat_runtime.samples import FinishReason, GeneratedSample, SampleId, SampleSize
from longboat_runtime.trainer.machine import MACHINE
from longboat_runtime.trainer.model import read_config
from longboat_runtime.trainer.protocol import TrainRequest, TrainSample
from longboat_runtime.trainer.rank import TrainerRank

# Bins of a rank in a minibatch: the second meets the gradients of the first.
BINS = 2
# The largest part of a sample that is taken for its prompt.
PROMPT = 1 / 16


def trace(spec: RLJobSpec, *, whole: bool = False) -> Figures:
    """Returns what a rank of the job holds and moves, on GPUs. Reads config.json of `spec.model.path`, and nothing else.

    Two models of few layers are traced, and their figures are extended to the model's layers, which is exact where layers repeat;
    with `whole`, or if the model has no more, all layers are. Raises SpecProblem if the model can't be trained as the spec says.
    """
    path = Path(spec.model.path)
    config = read_config(path)
    attention, fuses = MACHINE.choose_attention(config), MACHINE.head_can_be_fused(config)
    short = shortened(config)
    if whole or short is None:
        return trace_rank(spec, attention, fuses=fuses)
    return _extended(spec, attention, path, short, fuses=fuses)


def _extended(spec: RLJobSpec, attention: str, path: Path, short: Shortened, *, fuses: bool) -> Figures:
    figures = []
    for count in short.counts:
        with tempfile.TemporaryDirectory(prefix="longboat-plan-") as folder:
            content = short.config(json.loads((path / "config.json").read_text()), count)
            (Path(folder) / "config.json").write_text(json.dumps(content))
            model = spec.model.model_copy(update={"path": folder})
            figures.append(trace_rank(spec.model_copy(update={"model": model}), attention, fuses=fuses))
    fewer, more = figures
    return fewer.extended(more, (short.layers - short.counts[0]) / (short.counts[1] - short.counts[0]))


def trace_rank(spec: RLJobSpec, attention: str, *, fuses: bool) -> Figures:
    """Traces rank 0 of a trainer whose model, all its layers, has this `attention`: load, one step, publication and snapshot.

    `fuses` says whether its head can be fused.
    """
    minibatches = min(2, spec.trainer.minibatches)
    spec = spec.model_copy(update={"trainer": spec.trainer.model_copy(update={"minibatches": minibatches})})
    ranks = spec.trainer.replicas
    ledger, phases = Ledger(), {}
    machine = FakeMachine(attention, ledger, fuses=fuses)
    with fake_group():
        rank = TrainerRank(spec, 0, ranks, "", machine)
        # Samples and random states come from numpy and the CPU; they are no larger than a bin's tokens.
        with (
            FakeTensorMode(allow_non_fake_inputs=True),
            ledger,
            torch.compiler.set_stance("default", force_backend=interpreted),
        ):
            before = ledger.restart()
            info = rank.load()
            ledger.settle()
            phases["load"] = Phase(before, ledger.peak, ledger.held)
            weights = sum(_local(parameter).nbytes for parameter in rank.updates.parameters.values())
            reference = rank.updates.reference
            frozen = sum(_local(value).nbytes for value in reference.parameters()) if reference else 0
            states = ledger.held - weights - frozen
            samples = _samples(ranks * BINS * minibatches, spec, info.max_length, info.vocabulary)
            by_id = {sample.id: sample for sample in samples}
            entries = tuple(TrainSample(sample.id, 1.0, sample.size) for sample in samples)
            before, gathered, scattered = ledger.restart(), ledger.gathered, ledger.scattered
            machine.reads.clear()
            rank.train(TrainRequest(1, 1, entries, len(entries)), lambda ids: [by_id[id_] for id_ in ids])
            ledger.settle()
            accumulated, *later = [*machine.reads, ledger.peak]
            phases["accumulate"] = Phase(before, accumulated, ledger.held)
            phases["update"] = Phase(before, max(later), ledger.held)
            moved = (ledger.gathered - gathered, ledger.scattered - scattered)
            before, snapshot = ledger.restart(), ledger.host
            sizes: list[int] = []
            for _, tensor in rank.weights():
                sizes.append(tensor.nbytes)
            del tensor
            ledger.settle()
            phases["publish"] = Phase(before, ledger.peak, ledger.held)
            before = ledger.restart()
            rank.snapshot()
            ledger.settle()
            phases["snapshot"] = Phase(before, ledger.peak, ledger.held)
    return Figures(
        ranks=ranks,
        parameters=info.parameters,
        weights=weights,
        reference=frozen,
        states=states,
        phases=phases,
        snapshot=snapshot,
        published=sum(sizes),
        largest=max(sizes),
        gathered=moved[0] / (BINS * minibatches),
        scattered=moved[1] / (BINS * minibatches),
        operators=ledger.operators,
        real=ledger.real,
    )


def _samples(count: int, spec: RLJobSpec, longest: int, vocabulary: int) -> list[GeneratedSample]:
    """Makes samples that fill `count` bins: the longest that the model takes.

    A bin's head computes logits of response tokens only. Prompts are what the longest response leaves of model.maxLength, at most
    PROMPT of a sample.
    """
    capacity = spec.trainer.max_tokens_per_bin
    room = (spec.model.max_length or 0) - spec.rollout.sampling.max_tokens
    lengths = [min(longest, capacity)] * (capacity // min(longest, capacity))
    if capacity - sum(lengths) > 1:
        lengths.append(capacity - sum(lengths))
    return [
        _sample(SampleId(0, number * len(lengths) + index, 0, 0), length, max(1, min(room, int(length * PROMPT))))
        for number in range(count)
        for index, length in enumerate(lengths)
    ]


def _sample(id_: SampleId, tokens: int, prompt: int) -> GeneratedSample:
    return GeneratedSample(
        id=id_,
        prompt_ids=np.zeros(prompt, np.int32),
        token_ids=np.zeros(tokens - prompt, np.int32),
        logprobs=np.zeros(tokens - prompt, np.float32),
        spans=(),
        finish_reason=FinishReason.STOP,
        text="",
        engine="",
    )


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
