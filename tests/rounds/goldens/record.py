"""Recorded decisions of every round policy: `decisions.jsonl.gz`, which never changes.

    python -m tests.rounds.goldens.record

wrote it. A line is one run: `rounds` and `algorithm` of its job, and its `entries` in order. An entry is a start of the driver from
the state after the last commit (`start`), or something that was `told` from outside; `events` are those that it led to, first
itself (unless it had no effect), then what the policy decided; `stop` and `pause` name the samples that engines were then asked
to stop for good, and to give back.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longboat_crds.algorithm import resolve
from longboat_crds.job import RLJobSpec
from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import Body, Event
from longboat_runtime.rounds.named import open_policy
from longboat_runtime.rounds.records import State
from longboat_runtime.samples import GradeKind, SampleId
from tests.rounds.world import World

FILE = Path(__file__).with_name("decisions.jsonl.gz")
SEEDS = range(10)
STEPS, PROMPTS, HAPPENINGS = 5, 3, 150
QUOTAS = [{"domain": "a", "prompts": 1}, {"domain": "b", "prompts": 2}]

CASES: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"policy": "Synchronous"}, {}),
    ({"policy": "Synchronous"}, {"name": "DAPO"}),
    ({"policy": "Synchronous", "quotas": QUOTAS}, {}),
    ({"policy": "TailBatching", "promptOvercommit": 1.5, "sampleOvercommit": 1.0}, {}),
    ({"policy": "TailBatching", "promptOvercommit": 1.5, "sampleOvercommit": 1.5, "auditEvery": 2}, {}),
    ({"policy": "TailBatching", "promptOvercommit": 2.0, "sampleOvercommit": 1.5}, {"name": "DAPO"}),
    ({"policy": "TailBatching", "promptOvercommit": 2.0, "sampleOvercommit": 1.5, "quotas": QUOTAS}, {}),
    ({"policy": "ContinueUnfinished", "promptOvercommit": 1.5}, {}),
    ({"policy": "ContinueUnfinished", "promptOvercommit": 2.5}, {"name": "DAPO"}),
    ({"policy": "BoundedAsync", "maxStaleness": 1}, {}),
    ({"policy": "BoundedAsync", "maxStaleness": 2}, {"name": "DAPO"}),
)
SIZE = {"steps": STEPS, "promptsPerRound": PROMPTS}


def job(rounds: dict[str, Any], algorithm: dict[str, Any]) -> RLJobSpec:
    """The spec of a run."""
    return RLJobSpec.model_validate(
        {
            "runtimeRef": {"name": "local"},
            "model": {"path": "/models/tiny"},
            "dataset": {
                "files": {"paths": ["/data/train.jsonl"]},
                "columns": {"domain": "domain"} if "quotas" in rounds else {},
            },
            "algorithm": algorithm,
            "rounds": rounds,
            "rollout": {"sampling": {"maxTokens": 7}},
            "rewards": [{"name": "main", "function": "rewards:main"}],
        }
    )


def plain(body: Body) -> dict[str, Any]:
    """An event's body as JSON values, with its `type`."""
    value = Event(0, 0, 0.0, body).to_json()
    return {name: part for name, part in value.items() if name not in ("seq", "incarnation", "time")}


class Recorder(World):
    """Keeps what it is told and what comes of that."""

    def __init__(self, spec: RLJobSpec) -> None:
        super().__init__(open_policy(spec), resolve(spec.algorithm).group_size)
        self.entries: list[dict[str, Any]] = []

    def start(self) -> None:
        self.entries.append({"start": True})
        super().start()

    def record(self, body: Body) -> bool:
        self.entries.append({"told": plain(body), "events": [], "stop": [], "pause": []})
        return super().record(body)

    def noted(self, event: Event) -> None:
        super().noted(event)
        self.entries[-1]["events"].append(plain(event.body))

    def stop(self, samples: Sequence[SampleId]) -> None:
        super().stop(samples)
        self.entries[-1]["stop"] += [list(sample) for sample in samples]

    def pause(self, samples: Sequence[SampleId]) -> None:
        super().pause(samples)
        self.entries[-1]["pause"] += [list(sample) for sample in samples]


def run(rounds: dict[str, Any], algorithm: dict[str, Any], seed: int) -> dict[str, Any]:
    """One run: so many random happenings, then everything that is left."""
    rng = random.Random(seed)
    spec = job(rounds, algorithm)
    world = Recorder(spec)
    world.score = lambda sample: float(sample.index) if rng.random() < 0.7 else 0.5
    world.start()
    for _ in range(HAPPENINGS):
        _happen(world, rng)
    world.run(rng.choice)
    assert world.ledger.step == STEPS
    return {"rounds": rounds, "algorithm": algorithm, "seed": seed, "entries": world.entries}


def _happen(world: World, rng: random.Random) -> None:
    """Something that may happen now: mostly progress, sometimes a loss, a callback that comes late or again, or a restart."""
    running, generated = world.samples(State.RUNNING), world.samples(State.GENERATED)
    dice = rng.random()
    if dice < 0.01:
        world.start()
    elif dice < 0.04:
        world.record(events.RacesSuspended(rng.randint(1, 2)))
    elif dice < 0.08:
        _lose(world, rng)
    elif dice < 0.12 and world.log:
        callbacks = (events.Generated, events.Graded, events.Stopped, events.Paused, events.Lost)
        said = [event.body for event in world.log if isinstance(event.body, callbacks)]
        stale = [body for body in said if (r := world.ledger.sample(body.sample)) is None or r.state is State.SURPLUS]
        if stale:
            world.record(rng.choice(stale))
    elif dice < 0.3 and (world.stopping or world.pausing):
        _give_back(world, rng)
    elif dice < 0.55 and (world.training or world.publishing):
        _ = world.train() or world.publish()
    elif generated and (dice < 0.75 or not running):
        kind = rng.choice([GradeKind.SCORED] * 8 + [GradeKind.TIMEOUT, GradeKind.GRADER_ERROR])
        world.grade(rng.choice(generated), kind)
    elif running:
        world.finish(rng.choice(running))


def _lose(world: World, rng: random.Random) -> None:
    there = [
        sample
        for state in (State.RUNNING, State.PAUSED, State.GENERATED, State.REWARDED, State.KEPT)
        for sample in world.samples(state)
    ]
    if there:
        sample = rng.choice(there)
        record = world.ledger.sample(sample)
        world.lose(sample, engine_died=record is not None and record.state is State.RUNNING and rng.random() < 0.5)


def _give_back(world: World, rng: random.Random) -> None:
    """An engine has stopped a sample, or the sample ended by itself just before."""
    if world.stopping and (not world.pausing or rng.random() < 0.5):
        world.stopped(rng.choice(world.stopping), finished=rng.random() < 0.3)
        return
    sample = rng.choice(world.pausing)
    _ = world.finish(sample) if rng.random() < 0.3 else world.paused(sample)


def main() -> None:
    """Writes the file, once."""
    runs = [run({**SIZE, **r}, {"groupSize": 2, **a}, seed) for r, a in CASES for seed in SEEDS]
    text = "".join(json.dumps(one, separators=(",", ":")) + "\n" for one in runs)
    with FILE.open("xb") as file, gzip.GzipFile(fileobj=file, mode="wb", mtime=0, filename="") as packed:
        packed.write(text.encode())


if __name__ == "__main__":
    main()
