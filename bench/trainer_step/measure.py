"""One optimizer step on the same batch of random tokens: ours, ours with what a rank that is alone does without, and TRL's, in turns.

Nothing is generated, graded or published. A minute for each case.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from bench.memory.models import SHAPES
from bench.record import Recorder
from bench.samples import random_sample
from bench.step.cases import Case, case_named
from bench.step.longboat_step import Setting, job
from bench.step.trl_step import settings
from bench.trainer_step import gpu
from bench.trainer_step.batch import advantage, padded, request, trl_update
from longboat_crds.job import RLJobSpec
from longboat_runtime.cpu import layers
from longboat_runtime.samples import FinishReason, GeneratedSample, SampleId
from longboat_runtime.trainer import process_group, sharding
from longboat_runtime.trainer.rank import TrainerRank

CASES = ("even-0.6M-32", "tail-0.3M-256")
VOCABULARY = 264
WARM_UP = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `make bench NAME=trainer_step`."""
    parser.add_argument("--cases", nargs="*", default=[*map(case_named, CASES)], type=case_named)
    parser.add_argument("--steps", type=int, default=10, help="steps of each arm that count")
    parser.add_argument("--micro-batch", type=int, default=16, help="TRL's")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    group = parser.add_argument_group("on a GPU")
    group.add_argument("--sizes", nargs="*", default=[], choices=SHAPES, help="parameters of models, instead of cases")
    group.add_argument("--samples", type=int, default=128, help="of a step")
    group.add_argument("--longest", type=int, default=4096, help="tokens of a sample")
    group.add_argument("--bin-tokens", type=int, default=16384, help="Longboat's maxTokensPerBin")
    group.add_argument("--no-trl", dest="trl", action="store_false", help="where it isn't installed, or doesn't fit")
    group.add_argument("--without", nargs="*", default=[], help="arms of Longboat that aren't measured")
    group.add_argument("--profile", type=Path, help="directory for a profile of Longboat's kernels in one step")
    group.add_argument("--commit", help="that is measured, where there is no git to tell")


def run(arguments: argparse.Namespace, path: Path) -> None:
    """Appends to `path`."""
    torch.set_num_threads(arguments.threads)
    settings = {name: value for name, value in vars(arguments).items() if name not in ("cases", "profile")}
    recorder = Recorder(path, **settings, gpu=torch.cuda.get_device_name() if arguments.sizes else None)
    for size in arguments.sizes:
        with tempfile.TemporaryDirectory(prefix="longboat-bench-") as folder:
            gpu.measure(recorder, size, Path(folder), arguments)
    for case in [] if arguments.sizes else arguments.cases:
        with tempfile.TemporaryDirectory(prefix="longboat-bench-") as folder:
            measure(recorder, case, Path(folder), arguments.steps, arguments.micro_batch)
    recorder.close()


def measure(recorder: Recorder, case: Case, folder: Path, steps: int, micro_batch: int) -> None:
    """Measures the arms of a case in turn, on one random model of its size. Without g++ the compiled one is left out."""
    model = _random_model(case, folder / "model")
    samples = batch(case)
    arms: dict[str, Callable[[int], None]] = {"TRL": trl_step(case, model, samples, micro_batch, steps)}
    address = process_group.serve("127.0.0.1")
    spec = RLJobSpec.model_validate(job(case, model, folder / "none", 10_000, 0, Setting())["spec"])
    rank = TrainerRank(spec, 0, 1, address)
    try:
        arms["Longboat with FSDP2 and the model's layers"] = _longboat_step(rank, samples, fsdp=True, cpu_layers=False)
        arms["Longboat with the model's layers"] = _longboat_step(rank, samples, fsdp=False, cpu_layers=False)
        arms["Longboat"] = _longboat_step(rank, samples, fsdp=False, cpu_layers=True)
        if shutil.which("g++"):
            arms["Longboat, compiled"] = _longboat_step(rank, samples, fsdp=False, cpu_layers=True, compiled=True)
        for number in range(1, WARM_UP + steps + 1):
            for arm, step in arms.items():
                wall, cpu = time.perf_counter(), time.process_time()
                step(number)
                seconds = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
                if number > WARM_UP:
                    recorder.write("step", case=case.name, arm=arm, number=number, load=os.getloadavg()[0], **seconds)
    finally:
        process_group.leave()


def batch(case: Case) -> list[GeneratedSample]:
    """Makes samples of random tokens, with lengths about as in bench/step.

    Even ones end by chance (1 in 400 tokens), others are log-normal with median 17; all within the case's limit.
    """
    random = np.random.default_rng(0)
    longest = case.module.MAX_TOKENS
    draw = {"even": lambda: random.geometric(1 / 400), "tail": lambda: np.exp(random.normal(np.log(17), 0.9))}
    samples = []
    for number in range(case.samples):
        length = int(np.clip(draw[case.workload](), 1, longest))
        prompt = random.integers(4, VOCABULARY, case.module.PROMPT_TOKENS).astype(np.int32)
        reason = FinishReason.LENGTH if length == longest else FinishReason.STOP
        id_ = SampleId(0, number // 8, 0, number % 8)
        samples.append(random_sample(random, id_, prompt, length, (4, VOCABULARY), -5.5, reason))
    return samples


def _random_model(case: Case, directory: Path) -> Path:
    from tests.support.tiny_model import build_tiny_model

    depth, hidden, *_ = case.module.SIZES[case.size]
    return build_tiny_model(directory, layers=depth, hidden=hidden, vocabulary=VOCABULARY, max_length=512)


def _longboat_step(
    rank: TrainerRank, samples: list[GeneratedSample], *, fsdp: bool, cpu_layers: bool, compiled: bool = False
) -> Callable[[int], None]:
    """Makes a step of a model that is loaded with or without each of these; the rank is given the model back at every step."""
    trainer = rank.spec.trainer.model_copy(update={"compile": compiled})
    rank.spec = rank.spec.model_copy(update={"trainer": trainer})
    with (
        patch.object(sharding, "needs_fsdp", lambda *_: fsdp),
        patch.object(layers, "are_faster", lambda *_, **__: cpu_layers),
    ):
        rank.load()
    loaded = rank.model, rank.updates
    by_id = {sample.id: sample for sample in samples}

    def step(number: int) -> None:
        rank.model, rank.updates = loaded
        rank.train(request(number, samples), lambda ids: [by_id[id_] for id_ in ids])

    return step


def trl_step(
    case: Case, model: Path, samples: list[GeneratedSample], micro_batch: int, steps: int
) -> Callable[[int], None]:
    """Returns a step of GRPOTrainer on these samples: loss and backward pass for each micro-batch, clipping, and AdamW."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    trainer = GRPOTrainer(
        model=str(model),
        reward_funcs=case.module.reward,
        args=GRPOConfig(**settings(case, micro_batch, steps, 0, model.parent / "trl")),
        train_dataset=Dataset.from_list(case.module.rows(case.prompts, 0)),
    )
    optimizer = trainer.create_optimizer()
    parts = [padded(samples[start : start + micro_batch]) for start in range(0, len(samples), micro_batch)]
    for index, part in enumerate(parts):
        part["advantages"] = torch.tensor([advantage(index * micro_batch + i) for i in range(len(part["prompt_ids"]))])
        part["num_items_in_batch"] = sum(part["completion_mask"].sum() for part in parts)
    trainer.current_gradient_accumulation_steps = len(parts)
    trainer.model.train()

    return trl_update(trainer, optimizer, parts)
