"""TRL's side: GRPOTrainer, set up to be as fast as it can be on CPUs. Runs as a process of its own.

The settings that count, and why: float32 like Longboat (bf16 is its default), no gradient checkpointing (costs
time to save memory that is plentiful), all samples of a step generated in one batch, micro-batch chosen by measurement, no
reference model (beta 0, its default), all cores, rows in their order: both systems answer the same prompts in each step.
Advantages, loss and clip are GRPO's in both.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.step.cases import CLIP, GROUP_SIZE, LEARNING_RATE, Case, case_named


def settings(case: Case, micro_batch: int, steps: int, seed: int, output: Path) -> dict[str, Any]:
    """Returns the arguments of GRPOConfig."""
    return {
        "output_dir": str(output),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": case.samples // micro_batch,
        "generation_batch_size": case.samples,
        "num_generations": GROUP_SIZE,
        "max_completion_length": case.module.MAX_TOKENS,
        "max_steps": steps,
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "adam_beta2": 0.95,
        "max_grad_norm": 1.0,
        "beta": 0.0,
        "epsilon": CLIP,
        "loss_type": "grpo",
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "logging_steps": 1,
        "shuffle_dataset": False,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "seed": seed,
    }


def measure(case: Case, model: Path, micro_batch: int, steps: int, seed: int) -> list[dict[str, float]]:
    """Measures the seconds of each step: whole (from the end of the one before), and of generation and reward within it.

    Each row also has the mean response length, if TRL logs it.
    """
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    seconds: dict[str, float] = {}
    rows: list[dict[str, float]] = []

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            begun = time.perf_counter()
            try:
                return function(*arguments, **keywords)
            finally:
                seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - begun

        return call

    class Clock(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.last = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            now = time.perf_counter()
            rows.append({"step": now - self.last, **seconds})
            seconds.clear()
            self.last = now

        def on_log(self, _arguments: Any, _state: Any, _control: Any, logs: dict[str, Any], **__: Any) -> None:
            if "completions/mean_length" in logs:
                rows[-1]["mean_tokens"] = logs["completions/mean_length"]

    torch.manual_seed(seed)
    data = Dataset.from_list(case.module.rows(steps * case.prompts, seed))
    trainer = GRPOTrainer(
        model=str(model),
        reward_funcs=case.module.reward,
        args=GRPOConfig(**settings(case, micro_batch, steps, seed, model.parent / "trl")),
        train_dataset=data,
        callbacks=[Clock()],
    )
    trainer._generate = timed("generate", trainer._generate)
    trainer._calculate_rewards = timed("reward", trainer._calculate_rewards)
    trainer.train()
    return rows


def main() -> None:
    """Prints one JSON line with the rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case", type=case_named)
    parser.add_argument("model", type=Path)
    for name in ("micro-batch", "steps", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    arguments = parser.parse_args()
    rows = measure(arguments.case, arguments.model, arguments.micro_batch, arguments.steps, arguments.seed)
    sys.stdout.write("\n" + json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
