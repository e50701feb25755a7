"""The tasks. Sizes are chosen so that the whole run takes some 95 minutes on two CPUs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.rounds import drawn, drawn_reward
from bench.rounds.arms import ARMS, LEARNING
from bench.rounds.paced import STEP_SECONDS, PacedActor
from longboat_crds.job import RLJobSpec
from longboat_crds.load import load_job
from longboat_runtime.rollout.actor import EngineActor

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart" / "base"
QUICKSTART_RATE = 7e-4
# Graders know the quickstart's reward by this ConfigMap.
CONFIG_MAP = "quickstart"


@dataclass(frozen=True, slots=True)
class Task:
    """`about` says what it is. `learns`: weights affect lengths, and bench/rounds measures accuracy. Otherwise lengths are drawn.

    `layers`, `hidden`: of the model of drawn lengths. Eight layers take so long for a step that what else a response costs the CPUs matters
    less. The `engines` run in actors of the class `actor`; steps of a PacedActor take as long as those of a device. `bin_tokens` are those of
    `trainer.maxTokensPerBin`. `arms` are those that it is for.
    """

    name: str
    about: str
    prompts: int
    group_size: int
    steps: int
    learns: bool
    learning_rate: float = 1e-6
    layers: int = 0
    hidden: int = 128
    engines: int = 2
    actor: type[EngineActor] = EngineActor
    bin_tokens: int = 4096
    arms: Sequence[str] = (*ARMS,)

    def prepare(self, folder: Path) -> None:
        """Prepares model and data in `folder`."""
        if self.learns:
            command = [sys.executable, str(QUICKSTART / "build_base.py"), str(folder)]
            subprocess.run(command, check=True, stdout=sys.stderr)
        else:
            drawn.prepare(folder, self.layers, self.hidden)

    def spec(self, arm: str, folder: Path, *, steps: int, prompts: int, seed: int) -> RLJobSpec:
        """Makes the spec of the job that is one block."""
        rounds = {**ARMS[arm], "steps": steps, "promptsPerRound": prompts, "seed": seed}
        rollout = {"enginesPerPod": self.engines, "kvCache": "256Mi", "enforceEager": True}
        spec: dict[str, Any] = {
            "runtimeRef": {"name": "bench"},
            "model": {"path": str(folder / "model"), "dtype": "Float32"},
            "dataset": {"files": {"paths": [str(folder / "train.jsonl")]}},
            "rounds": rounds,
            "rewardPools": [{"name": "default", "gradersPerPod": 2}],
            "checkpoint": {"everySteps": steps, "keep": 1, "export": False},
        }
        spec |= self._learned(folder, rollout) if self.learns else self._drawn(rollout)
        job = {
            "apiVersion": "longboat.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": f"bench-{self.name}"},
            "spec": spec,
        }
        return load_job(json.dumps(job)).spec

    def _learned(self, folder: Path, rollout: dict[str, Any]) -> dict[str, Any]:
        """Makes the parts of the spec that follow examples/quickstart: data, algorithm, rollout, rewards and trainer."""
        return {
            "dataset": {
                "files": {"paths": [str(folder / "train.jsonl")]},
                "columns": {"groundTruth": "answer"},
                "evaluation": {"files": {"paths": [str(folder / "heldout.jsonl")]}, "temperature": 1},
            },
            "algorithm": {"name": "GRPO", "groupSize": self.group_size, "aggregation": "TokenMean"},
            "rollout": {"sampling": {"maxTokens": 244}, **rollout},
            "rewards": [
                {"name": "countdown", "configMap": {"name": CONFIG_MAP, "key": "reward.py", "function": "reward"}}
            ],
            "trainer": {"optimizer": {"learningRate": self.learning_rate}, "maxTokensPerBin": self.bin_tokens},
        }

    def _drawn(self, rollout: dict[str, Any]) -> dict[str, Any]:
        return {
            "algorithm": {"name": "GRPO", "groupSize": self.group_size},
            "rollout": {"sampling": {"maxTokens": drawn.LONGEST}, **rollout},
            "rewards": [{"name": "drawn", "signature": "TRL", "function": f"{drawn_reward.__file__}:reward"}],
            "trainer": {"optimizer": {"learningRate": self.learning_rate}, "maxTokensPerBin": self.bin_tokens},
        }


COUNTDOWN = Task(
    "countdown",
    "Model, data and rewards of the quickstart, with fewer prompts a round. Responses end by themselves.",
    prompts=16,
    group_size=8,
    steps=12,
    learns=True,
    learning_rate=QUICKSTART_RATE,
)

TASKS = {
    task.name: task
    for task in (
        COUNTDOWN,
        replace(
            COUNTDOWN,
            name="countdown-half",
            about="The same with half the learning rate.",
            learning_rate=QUICKSTART_RATE / 2,
            arms=LEARNING,
        ),
        Task(
            "drawn",
            "Lengths are drawn: log-normal, by prompt and by response. Engines compute on the CPUs that all else uses too.",
            prompts=12,
            group_size=2,
            steps=15,
            learns=False,
            layers=8,
        ),
        Task(
            "device",
            f"The same lengths. A step takes an engine at least {1000 * STEP_SECONDS:g} ms, as a device would, in which CPUs are free.",
            prompts=12,
            group_size=2,
            steps=15,
            learns=False,
            layers=2,
            actor=PacedActor,
        ),
    )
}


def task_named(name: str) -> Task:
    """Raises ValueError for a name that isn't in the table."""
    if name not in TASKS:
        raise ValueError(f"no task {name}: one of {', '.join(TASKS)}")
    return TASKS[name]
