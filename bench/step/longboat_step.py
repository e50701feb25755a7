"""Longboat's side: `longboat run`, with everything a job has: engines, store, graders, trainer, publication of weights."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.step.cases import CLIP, GROUP_SIZE, LEARNING_RATE, Case, write_dataset

STAGES = {"generate": "gen", "reward": "reward", "train": "update_actor", "publish": "update_weights"}


@dataclass(frozen=True, slots=True)
class Setting:
    """What a user would try out: engines, whether they are eager (else they compile, with g++), how many of the longest samples a bin of
    the trainer holds, and whether its layers are compiled (with g++ too).
    """

    engines: int = 1
    eager: bool = True
    bin_samples: int = 8
    compile_layers: bool = False


def job(case: Case, model: Path, data: Path, steps: int, seed: int, setting: Setting) -> dict[str, Any]:
    """Makes the RLJob. Checkpoints are made after the last step only, as TRL makes none."""
    return {
        "apiVersion": "longboat.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "bench"},
        "spec": {
            "runtimeRef": {"name": "bench"},
            "model": {"path": str(model), "dtype": "Float32"},
            "dataset": {"files": {"paths": [str(data)]}, "shuffle": False},
            "algorithm": {"name": "GRPO", "groupSize": GROUP_SIZE, "clipLow": CLIP, "clipHigh": CLIP},
            "rounds": {"steps": steps, "promptsPerRound": case.prompts, "seed": seed},
            "rollout": {
                "sampling": {"maxTokens": case.module.MAX_TOKENS},
                "enginesPerPod": setting.engines,
                "kvCache": "512Mi",
                "enforceEager": setting.eager,
            },
            "rewards": [{"name": case.workload, "signature": "TRL", "function": f"{case.module.__file__}:reward"}],
            "rewardPools": [{"name": "default", "gradersPerPod": 1}],
            "trainer": {
                "maxTokensPerBin": setting.bin_samples * (case.module.PROMPT_TOKENS + case.module.MAX_TOKENS),
                "compile": setting.compile_layers,
                "optimizer": {"learningRate": LEARNING_RATE},
            },
            "checkpoint": {"everySteps": steps, "keep": 1, "export": False},
        },
    }


def measure(
    case: Case,
    model: Path,
    scratch: Path,
    steps: int,
    seed: int,
    setting: Setting,
    *,
    samples: dict[str, Any] | None = None,
) -> list[dict[str, float]]:
    """Measures the seconds of each step: whole (from the record before to its own), and by stage; also its mean response length.

    `samples` is that of the spec.
    """
    from longboat_runtime.metrics.record import read_records

    output = scratch / "longboat"
    shutil.rmtree(output, ignore_errors=True)
    data = write_dataset(case, scratch / "prompts.jsonl", steps * case.prompts, seed)
    file = scratch / "job.yaml"
    made = job(case, model, data, steps, seed, setting)
    if samples is not None:
        made["spec"]["samples"] = samples
    file.write_text(json.dumps(made))
    command = [str(Path(sys.executable).with_name("longboat")), "run", str(file), "--output", str(output)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    rows = []
    for before, record in pairwise(read_records(output)):
        stages = {name: record.metrics.get(f"timing_s/{stage}", 0.0) for name, stage in STAGES.items()}
        tokens = record.metrics.get("response_length/mean", float("nan"))
        rows.append({"step": record.time - before.time, **stages, "mean_tokens": tokens})
    return rows
