"""One optimizer step of a model that people train, on a GPU: ours, and TRL's, on the same samples with random tokens.

Weights and optimizer are float32 and arithmetic is bfloat16 in both, and both recompute layers in the backward pass. TRL is given
micro-batches that are padded to their own longest sample; GRPOTrainer pads to that of the step.
"""

from __future__ import annotations

import argparse
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.attention import varlen

from bench.memory.models import VOCABULARY, build_model
from bench.record import Recorder
from bench.samples import random_sample
from bench.trainer_step.batch import advantage, padded, request, trl_update
from longboat_crds.job import RLJobSpec
from longboat_runtime.samples import GeneratedSample, SampleId
from longboat_runtime.trainer import forward, process_group
from longboat_runtime.trainer.machine import MACHINE, Machine
from longboat_runtime.trainer.rank import TrainerRank

GROUP_SIZE = 8
PROMPT_TOKENS = (64, 256)
# Lengths of responses, log-normal, as those of 7B models to GSM8K and MATH are: most are short, a few run on.
MEDIAN, SIGMA = 350, 0.9
WARM_UP = 2


def measure(recorder: Recorder, size: str, folder: Path, arguments: argparse.Namespace) -> None:
    """Measures in turn all arms that `arguments` ask for; the device has to have room for them all."""
    model = build_model(size, folder / size)
    samples = responses(arguments.samples, arguments.longest, VOCABULARY.get(size, 151936))
    lengths = [sample.size.computed for sample in samples]
    arms: dict[str, Callable[[int], None]] = {}
    if arguments.trl:
        arms["TRL"] = trl_step(model, samples, arguments.micro_batch, folder)
    with _rank(model, arguments) as rank:
        flops = rank.load().flops
        longboat = _longboat_step(rank, samples)
        not_compiled = _not_compiled(rank, longboat)
        arms["Longboat, not compiled, sample by sample"] = _sample_by_sample(rank, not_compiled)
        arms |= {"Longboat, not compiled": not_compiled, "Longboat": longboat}
        arms = {name: step for name, step in arms.items() if name not in arguments.without}
        for number in range(1, WARM_UP + arguments.steps + 1):
            for arm, step in arms.items():
                torch.cuda.reset_peak_memory_stats()
                allocated = torch.cuda.memory_allocated()
                torch.cuda.synchronize()
                wall, cpu = time.perf_counter(), time.process_time()
                step(number)
                torch.cuda.synchronize()
                line = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
                line["beyond"] = torch.cuda.max_memory_allocated() - allocated
                line["mfu"] = flops.utilisation(lengths, line["wall"], 1)
                line["tokens"] = sum(lengths)
                if number > WARM_UP:
                    recorder.write("gpu-step", size=size, arm=arm, number=number, **line)
        if arguments.profile:
            profile(longboat, arguments.profile / f"{size}.txt")


def responses(count: int, longest: int, vocabulary: int) -> list[GeneratedSample]:
    """Makes `count` samples with random tokens, GROUP_SIZE of each prompt; prompt and response have at most `longest` together."""
    random = np.random.default_rng(0)
    samples = []
    for number in range(count):
        if number % GROUP_SIZE == 0:
            prompt = random.integers(0, vocabulary, random.integers(*PROMPT_TOKENS)).astype(np.int32)
        length = int(np.clip(np.exp(random.normal(np.log(MEDIAN), SIGMA)), 1, longest - len(prompt)))
        id_ = SampleId(0, number // GROUP_SIZE, 0, number % GROUP_SIZE)
        samples.append(random_sample(random, id_, prompt, length, (0, vocabulary), -12.0))
    return samples


def profile(step: Callable[[int], None], path: Path) -> None:
    """Writes where a step's time on the GPU goes, by kernel."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    with profiled(activities=[ProfilerActivity.CUDA]) as profiler:
        step(1)
        torch.cuda.synchronize()
    table = profiler.key_averages().table(sort_by="self_cuda_time_total", row_limit=60, max_name_column_width=110)
    path.write_text(table)


@contextmanager
def _rank(model: Path, arguments: argparse.Namespace) -> Iterator[TrainerRank]:
    serve_older_torch()
    spec = {
        "runtimeRef": {"name": "bench"},
        "model": {"path": str(model), "dtype": "BFloat16"},
        "dataset": {"reasoningGym": {"task": "chain_sum"}},
        "rewards": [{"name": "scorer", "kind": "ReasoningGym"}],
        "algorithm": {"name": "GRPO", "groupSize": GROUP_SIZE},
        "rounds": {"steps": 10_000, "promptsPerRound": arguments.samples // GROUP_SIZE},
        "rollout": {"sampling": {"maxTokens": arguments.longest}},
        "trainer": {"maxTokensPerBin": arguments.bin_tokens, "gradientCheckpointing": True},
    }
    try:
        yield TrainerRank(RLJobSpec.model_validate(spec), 0, 1, process_group.serve("127.0.0.1"))
    finally:
        process_group.leave()


def serve_older_torch() -> None:
    """Lets torch 2.11 measure: what 2.13 added either isn't needed by these models or says what 2.11 does anyway."""
    if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
        FSDPModule.set_reduce_scatter_unused_params = lambda *_: None  # these models use all of their weights
    kernel = varlen.varlen_attn
    if "enable_gqa" not in inspect.signature(kernel).parameters:

        def older(*tensors: Any, enable_gqa: bool, **keywords: Any) -> Any:
            return kernel(*tensors, **keywords)

        varlen.varlen_attn = older


def _longboat_step(rank: TrainerRank, samples: list[GeneratedSample]) -> Callable[[int], None]:
    by_id = {sample.id: sample for sample in samples}

    def step(number: int) -> None:
        rank.train(request(number, samples), lambda ids: [by_id[id_] for id_ in ids])

    return step


def _not_compiled(rank: TrainerRank, step: Callable[[int], None]) -> Callable[[int], None]:
    """Makes the same step by the model without its compiled layers."""

    def slower(number: int) -> None:
        compiled = {
            layer: layer.__dict__.pop("forward") for layer in rank.model.modules() if "forward" in layer.__dict__
        }
        setattr(rank.model, forward.COMPILED, False)
        try:
            step(number)
        finally:
            setattr(rank.model, forward.COMPILED, True)
            for layer, method in compiled.items():
                layer.forward = method

    return slower


class _SampleBySample(Machine):
    def takes_all(self, query: Any) -> bool:
        return False


def _sample_by_sample(rank: TrainerRank, step: Callable[[int], None]) -> Callable[[int], None]:
    """Makes the same step with attention computed for one sample, or several of one length, at a time."""

    def slower(number: int) -> None:
        rank.updates.platform = _SampleBySample()
        try:
            step(number)
        finally:
            rank.updates.platform = MACHINE

    return slower


def trl_step(model: Path, samples: list[GeneratedSample], micro_batch: int, folder: Path) -> Callable[[int], None]:
    """Returns a step of GRPOTrainer on these samples: loss and backward pass for each micro-batch, clipping, and AdamW."""
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<unk>")),
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
    )
    settings: dict[str, Any] = {
        "output_dir": str(folder / "trl"),
        "bf16": True,
        "model_init_kwargs": {"dtype": "float32"},
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": len(samples) // micro_batch,
        "generation_batch_size": len(samples),
        "num_generations": GROUP_SIZE,
        "learning_rate": 1e-6,
        "beta": 0.0,
        "loss_type": "grpo",
        "temperature": 1.0,
        "report_to": [],
        "save_strategy": "no",
        "optim": "adamw_torch_fused",
    }
    trainer = GRPOTrainer(
        model=str(model),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(**settings),
        train_dataset=Dataset.from_list([{"prompt": "x"}]),
        processing_class=tokenizer,
    )
    optimizer = trainer.create_optimizer()
    device = trainer.accelerator.device
    parts = [padded(samples[start : start + micro_batch]) for start in range(0, len(samples), micro_batch)]
    total = sum(part["completion_mask"].sum() for part in parts)
    for index, part in enumerate(parts):
        numbers = range(index * micro_batch, index * micro_batch + len(part["prompt_ids"]))
        part |= {"advantages": torch.tensor([advantage(i) for i in numbers]), "num_items_in_batch": total}
        for name, value in part.items():
            part[name] = value.to(device)
    trainer.current_gradient_accumulation_steps = len(parts)
    trainer.model.gradient_checkpointing_enable({"use_reentrant": False})
    trainer.model.train()

    return trl_update(trainer, optimizer, parts)
