"""Traces one rank of a trainer on fake tensors: the code that trains, without files, devices or memory."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from longboat_crds.job import RLJobSpec
from longboat_crds.model import DType
from longboat_runtime.model_config import language_model
from longboat_runtime.plan.compiled import Interpreted
from longboat_runtime.plan.fake import FakeMachine, fake_group
from longboat_runtime.plan.figures import Figures, Phase
from longboat_runtime.plan.layers import Shortened, shortened
from longboat_runtime.plan.ledger import Ledger, automatic_collection_off
from longboat_runtime.samples import FinishReason, GeneratedSample, SampleId, Segment
from longboat_runtime.trainer.full_weights import units
from longboat_runtime.trainer.machine import MACHINE
from longboat_runtime.trainer.model import read_config
from longboat_runtime.trainer.protocol import TrainRequest, TrainSample
from longboat_runtime.trainer.rank import TrainerRank
from longboat_runtime.trainer.sharding import TORCH_DTYPES

# Bins of a rank in a minibatch: the second is computed beside the gradients of the first.
BINS = 2
# The largest share of a sample that counts as its prompt.
PROMPT = 1 / 16


def model_values(path: Path) -> dict[str, Any]:
    """Returns the model's config.json by standard names, with the defaults of its class for missing values.

    Raises SpecProblem unless the model can be trained.
    """
    return language_model(read_config(path).get_text_config().to_dict())


class Traces:
    """Traces each trainer once. Stores figures in `folder`, if there is one, for later processes."""

    def __init__(self, folder: Path | None = None) -> None:
        self._figures: dict[str, Figures] = {}
        self._folder = folder

    def __call__(self, spec: RLJobSpec) -> Figures:
        key = digest(spec)
        if key not in self._figures:
            self._figures[key] = self._load(key) or self._save(key, trace(spec))
        return self._figures[key]

    def _load(self, key: str) -> Figures | None:
        if self._folder is None:
            return None
        try:
            return Figures.from_json((self._folder / key).read_text())
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def _save(self, key: str, figures: Figures) -> Figures:
        if self._folder is not None:
            partial = self._folder / f".{key}.{os.getpid()}"
            # On a full volume the next process traces again.
            with suppress(OSError):
                self._folder.mkdir(parents=True, exist_ok=True)
                partial.write_text(figures.to_json())
                partial.replace(self._folder / key)
        return figures


def digest(spec: RLJobSpec) -> str:
    """Hashes everything that figures depend on: the model's config.json, the sections of the spec that a trainer reads, and versions."""
    parts = {name: getattr(spec, name).model_dump(mode="json") for name in ("model", "trainer", "algorithm", "rounds")}
    parts["sampling"] = spec.rollout.sampling.model_dump(mode="json")
    parts["versions"] = [version(name) for name in ("longboat", "torch", "transformers")]
    parts["config"] = (Path(spec.model.path) / "config.json").read_text()
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def trace(spec: RLJobSpec, *, whole: bool = False) -> Figures:
    """Returns what a rank of the job holds and moves on GPUs. Reads nothing but config.json of `spec.model.path`.

    Traces two models of few layers and extends their figures to all layers, which is exact where layers repeat. With `whole`, or for
    a short model, traces all layers. Traces Float16 as BFloat16, which takes as much, since fake tensors of experts can't be multiplied
    in it. Raises SpecProblem if the model can't be trained as the spec says.
    """
    if spec.model.dtype is DType.FLOAT16:
        spec = spec.model_copy(update={"model": spec.model.model_copy(update={"dtype": DType.BFLOAT16})})
    path = Path(spec.model.path)
    config = read_config(path)
    attention, fused = _tried(path, (path / "config.json").read_text())
    short = shortened(config)
    if whole or short is None:
        return trace_rank(spec, attention, fused=fused)
    return _extended(spec, attention, fused, path, short)


@cache
def _tried(path: Path, content: str) -> tuple[str, bool]:
    """Returns the attention of the model in `path`, whose config.json has this content, and whether its head may be fused."""
    del content
    config = read_config(path)
    return MACHINE.choose_attention(config), MACHINE.head_can_be_fused(config)


def _extended(spec: RLJobSpec, attention: str, fused: bool, path: Path, short: Shortened) -> Figures:
    figures = []
    for count in short.counts:
        with tempfile.TemporaryDirectory(prefix="longboat-plan-") as folder:
            content = short.config(json.loads((path / "config.json").read_text()), count)
            (Path(folder) / "config.json").write_text(json.dumps(content))
            model = spec.model.model_copy(update={"path": folder})
            figures.append(trace_rank(spec.model_copy(update={"model": model}), attention, fused=fused))
    fewer, more = figures
    return fewer.extended(more, (short.layers - short.counts[0]) / (short.counts[1] - short.counts[0]))


def trace_rank(spec: RLJobSpec, attention: str, *, fused: bool) -> Figures:
    """Traces rank 0 of a trainer, all layers of its model: load, one step, publication and snapshot.

    `attention` names the model's attention; `fused` says whether its head may be fused.
    """
    minibatches = min(2, spec.trainer.minibatches)
    spec = spec.model_copy(update={"trainer": spec.trainer.model_copy(update={"minibatches": minibatches})})
    ranks = spec.trainer.ranks
    ledger, phases = Ledger(), {}
    torch._dynamo.reset()  # each trace is a new backend, and dynamo compiles for no more than eight
    machine = FakeMachine(attention, fused, ledger)
    with fake_group():
        rank = TrainerRank(spec, 0, ranks, "", machine)
        # Samples and random states come from numpy and the CPU; they are no larger than a bin's tokens.
        with (
            FakeTensorMode(allow_non_fake_inputs=True),
            ledger,
            automatic_collection_off(),
            torch.compiler.set_stance("default", force_backend=Interpreted(ledger)),
        ):
            before = ledger.restart()
            info = rank.load()
            ledger.collect()
            phases["load"] = Phase(before, ledger.peak, ledger.allocated)
            weights = sum(_local(parameter).nbytes for parameter in rank.updates.parameters.values())
            reference = rank.updates.reference
            frozen = sum(_local(value).nbytes for value in reference.parameters()) if reference else 0
            states, snapshot = ledger.allocated - weights - frozen, ledger.host
            samples = _samples(ranks * BINS * minibatches, spec, info.max_length, info.vocabulary)
            by_id = {sample.id: sample for sample in samples}
            entries = tuple(TrainSample(sample.id, 1.0, sample.size) for sample in samples)
            before, earlier = ledger.restart(), ledger.moved
            machine.reads.clear()
            rank.train(TrainRequest(1, 1, entries, len(entries)), lambda ids: [by_id[id_] for id_ in ids])
            ledger.collect()
            accumulated, *later = [*machine.reads, ledger.peak]
            phases["accumulate"] = Phase(before, accumulated, ledger.allocated)
            phases["update"] = Phase(before, max(later), ledger.allocated)
            moved = [now - then for now, then in zip(ledger.moved, earlier, strict=True)]
            before, pinned = ledger.restart(), ledger.host - snapshot
            tensors = {name: (tensor.ndim, tensor.nbytes) for name, tensor in rank.weights()}
            together = units(rank.model, TORCH_DTYPES[spec.model.dtype])
            ledger.collect()
            phases["publish"] = Phase(before, ledger.peak, ledger.allocated)
            before = ledger.restart()
            rank.snapshot()
            ledger.collect()
            phases["snapshot"] = Phase(before, ledger.peak, ledger.allocated)
    return Figures(
        ranks=ranks,
        parameters=info.parameters,
        weights=weights,
        reference=frozen,
        states=states,
        phases=phases,
        snapshot=snapshot,
        pinned=pinned,
        published=sum(size for _, size in tensors.values()),
        largest=max(sum(kind.nbytes for kind in unit.kinds) for unit in together),
        vectors=sum(size for dimensions, size in tensors.values() if dimensions < 2),
        key_values=sum(
            size
            for name, (dimensions, size) in tensors.items()
            if dimensions > 1 and any(part in name for part in (".k_proj.", ".v_proj."))
        ),
        gathered=moved[0] / (BINS * minibatches),
        scattered=moved[1] / (BINS * minibatches),
        reduced=moved[2] / (BINS * minibatches),
        operators=ledger.operators,
        real=ledger.real,
    )


def _samples(count: int, spec: RLJobSpec, longest: int, vocabulary: int) -> list[GeneratedSample]:
    """Makes samples as long as the model allows, which fill `count` bins.

    Only response tokens have logits. A prompt is as long as the longest response leaves room for in model.maxLength, and at most PROMPT
    of its sample.
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
    segment = Segment.single_turn(
        np.zeros(prompt, np.int32), np.zeros(tokens - prompt, np.int32), np.zeros(tokens - prompt, np.float32), ()
    )
    return GeneratedSample(
        id=id_,
        segments=(segment,),
        finish_reason=FinishReason.STOP,
        text="",
        engine="",
    )


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
