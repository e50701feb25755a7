"""Trains a tiny model on a tool game with `longboat run`, once for each seed. Takes minutes of one CPU for each seed."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.episodes_learning import environment
from bench.episodes_learning.base import build
from bench.record import Recorder
from longboat_runtime.metrics.record import read_records

# Game and settings were chosen with the pilots; the other seeds are run once.
PILOTS, SEEDS = range(100, 105), range(10)
STEPS = 30
JOB = """
apiVersion: longboat.dev/v1alpha1
kind: RLJob
metadata: {{name: roads}}
spec:
  runtimeRef: {{name: local}}
  model: {{path: {data}/model, dtype: Float32, maxLength: 128}}
  dataset:
    files: {{paths: [{data}/train.jsonl]}}
    evaluation: {{files: {{paths: [{data}/heldout.jsonl]}}, everySteps: 10, samplesPerPrompt: 1, temperature: 1}}
  algorithm: {{name: GRPO, groupSize: 8}}
  rounds: {{policy: Synchronous, steps: {steps}, promptsPerRound: 16, seed: {seed}}}
  rollout:
    toolParser: hermes
    sampling: {{maxTokens: 48}}
    kvCache: 64Mi
    enforceEager: true
  environments: [{{name: roads, function: "{function}:episode", limits: {{maxTurns: 8, deadlineSeconds: 30}}}}]
  environmentPools: [{{name: games, episodesPerPod: 16}}]
  rewards: [{{name: right, kind: Episode}}]
  trainer: {{optimizer: {{learningRate: 7.0e-4}}, maxTokensPerBin: 4096}}
  checkpoint: {{everySteps: {steps}, keep: 1, export: false}}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `make bench NAME=episodes_learning`."""
    parser.add_argument("--seeds", type=int, nargs="*", default=[*SEEDS], help=f"pilots are {[*PILOTS]}")
    parser.add_argument("--steps", type=int, default=STEPS)


def run(arguments: argparse.Namespace, path: Path) -> None:
    """Appends a line for each seed to `path`. A run that fails ends the benchmark and shows its last lines."""
    recorder = Recorder(path, seeds=arguments.seeds, steps=arguments.steps)
    with tempfile.TemporaryDirectory(prefix="lb-") as name:
        data = Path(name)
        build(data)
        for seed in arguments.seeds:
            began = time.monotonic()
            rewards = _trained(data, seed, arguments.steps)
            seconds = time.monotonic() - began
            print(f"seed {seed}: {rewards[0]:.3f} -> {rewards[-1]:.3f} in {seconds:.0f} s", flush=True)
            recorder.write("training", seed=seed, held_out=rewards, seconds=seconds)
    recorder.close()


def _trained(data: Path, seed: int, steps: int) -> list[float]:
    """Trains with a seed; returns the held-out rewards, the first before the first step."""
    job, output = data / f"job-{seed}.yaml", data / f"out-{seed}"
    job.write_text(JOB.format(data=data, steps=steps, seed=seed, function=environment.__file__))
    command = [sys.executable, "-m", "longboat_runtime.cli", "run", str(job), "--output", str(output), "--verbose"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise SystemExit(f"seed {seed} failed:\n{finished.stdout[-2000:]}{finished.stderr[-4000:]}")
    records = read_records(output)
    return [record.metrics["val/score/mean"] for record in records if "val/score/mean" in record.metrics]
