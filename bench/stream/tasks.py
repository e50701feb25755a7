"""The tasks, policies and ways to stream that are compared."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from bench.rounds.arms import BASELINE
from bench.rounds.paced import PacedActor
from bench.rounds.tasks import COUNTDOWN, Task
from longboat_crds.job import RLJobSpec
from longboat_crds.trainer import StreamMode
from longboat_runtime.driver import loop, streaming
from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import Event
from longboat_runtime.rounds.policy import Decision, Policy
from longboat_runtime.rounds.streaming import Streaming
from longboat_runtime.rounds.view import View

POLICIES = (BASELINE, "TailBatching-1.25")
# Names and `trainer.stream` of the ways to train a step.
OFF, ON, ONCE = "off", "on", "once"
WAYS = {OFF: StreamMode.NEVER, ON: StreamMode.ALWAYS, ONCE: StreamMode.ALWAYS}


class DeviceActor(PacedActor):
    """Computes for less than such a step, until it works on some 50 sequences."""

    step_seconds = 0.025


TASKS = {
    task.name: task
    for task in (
        Task(
            "device",
            f"Lengths are drawn, the model has 4 million parameters. A step takes an engine at least {1000 * DeviceActor.step_seconds:g} ms, as a "
            "device would. One engine and one trainer rank have a CPU each. Prompts are as many as give the trainer between a third and a half of a rollout's time.",
            prompts=56,
            group_size=4,
            steps=5,
            learns=False,
            layers=6,
            hidden=256,
            engines=1,
            actor=DeviceActor,
            bin_tokens=1040,
        ),
        Task(
            "busy",
            "Model, data and rewards of the quickstart, with fewer prompts a round. Engines and trainer share the CPUs.",
            prompts=COUNTDOWN.prompts,
            group_size=COUNTDOWN.group_size,
            steps=10,
            learns=True,
            learning_rate=COUNTDOWN.learning_rate,
            bin_tokens=1040,
        ),
    )
}


def task_named(name: str) -> Task:
    """Raises ValueError for a name that isn't in the table."""
    if name not in TASKS:
        raise ValueError(f"no task {name}: one of {', '.join(TASKS)}")
    return TASKS[name]


def spec_of(task: Task, policy: str, way: str, folder: Path, *, steps: int, seed: int) -> RLJobSpec:
    """Makes the spec of one block."""
    spec = task.spec(policy, folder, steps=steps, prompts=task.prompts, seed=seed)
    return spec.model_copy(update={"trainer": spec.trainer.model_copy(update={"stream": WAYS[way]})})


@dataclass(frozen=True, slots=True)
class SingleFetch:
    """Streams one chunk a step, once half of its prompts are complete."""

    streaming: Streaming
    prompts: int

    def decide(self, view: View, event: Event) -> Sequence[Decision]:
        """See rounds.policy.Policy."""
        decisions = self.streaming.decide(view, event)
        for decision in decisions:
            if isinstance(decision, events.ChunkStarted) and (
                decision.number > 1 or 2 * len(decision.prompts) < self.prompts
            ):
                return []
        return decisions


def streamed(way: str) -> AbstractContextManager[object]:
    """Makes the drivers of the block stream in this way."""
    if way != ONCE:
        return nullcontext()

    def once(policy: Policy, spec: RLJobSpec) -> Policy:
        streams = streaming.with_chunks(policy, spec)
        assert isinstance(streams, Streaming)
        return SingleFetch(streams, spec.rounds.prompts_per_round)

    return patch.object(loop, "with_chunks", once)
