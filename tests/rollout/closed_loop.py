"""Jobs whose engines are a roofline model, to see what plans of their shapes are worth."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from longboat_runtime.rollout.round_seconds import RoundCost, Work, round_cost
from longboat_runtime.rollout.throughput import EngineModel, Throughput
from longboat_runtime.rounds.events import Responses, RoundKind, RoundMeasured, RoundWork

SHORT, LONG = RoundKind.SHORT, RoundKind.LONG
SEQUENCES = (1, 4, 16, 64, 256)
CONTEXTS = (64, 512, 4096, 16384)


def roofline(
    size: int,
    *,
    weights: float = 0.02,
    overhead: float = 0.006,
    kv: float = 4e-8,
    work: float = 1e-4,
    communication: float = 0.0,
    memory: int = 40_000,
    weight_tokens: int = 26_000,
) -> EngineModel:
    """An engine of `size` devices: a step reads the weights and each sequence's keys and values, computes, and communicates.

    Memory is in tokens of KV cache, of which the weights take `weight_tokens`. Ranks take `communication` seconds for each sequence.
    """
    tokens = size * memory - weight_tokens
    seconds = tuple(
        tuple(
            (overhead * 1.5 + n * communication if size > 1 else overhead) + (weights + n * c * kv + n * work) / size
            for c in CONTEXTS
        )
        for n in SEQUENCES
    )
    return EngineModel(tokens, 2e-5, SEQUENCES, CONTEXTS, seconds)


@dataclass(frozen=True)
class Load:
    """Rounds of `prompts` x `group` responses whose log-lengths have this median and spreads; short rounds launch `overcommit` as many."""

    prompts: int = 16
    group: int = 8
    overcommit: float = 1.25
    median: float = 800.0
    prompt_sigma: float = 0.6
    sample_sigma: float = 0.4
    longest: int = 8000
    prompt_tokens: int = 100


@dataclass
class Job:
    """A job on `devices`, whose rounds follow a load that changes with the round; deferred prompts wait for a long round.

    If it `reports`, measured rounds say what the KV cache of their engines holds.
    """

    truth: Throughput
    load: Callable[[int], Load]
    costs: Mapping[int, float]
    devices: int = 4
    max_sequences: int = 64
    noise: float = 0.02
    seed: int = 0
    reports: bool = True
    deferred: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.number = 0

    @property
    def following(self) -> RoundKind:
        return LONG if len(self.deferred) >= self.load(self.number).prompts else SHORT

    def round(self) -> tuple[RoundKind, list[list[int]]]:
        """The next round's kind and its responses' lengths by prompt."""
        load, kind = self.load(self.number), self.following
        self.number += 1
        if kind is LONG:
            now, self.deferred = self.deferred[: load.prompts], self.deferred[load.prompts :]
            return kind, now
        return kind, [self._prompt(load) for _ in range(round(load.prompts * load.overcommit))]

    def _prompt(self, load: Load) -> list[int]:
        level = self.random.gauss(0, load.prompt_sigma)
        draw = (self.random.gauss(level, load.sample_sigma) for _ in range(load.group))
        return [max(1, min(load.longest, int(load.median * 2.718281828**one))) for one in draw]

    def measure(self, kind: RoundKind, prompts: list[list[int]], size: int) -> RoundMeasured:
        """What the round takes with engines of this size. A short round keeps the prompts that are complete first."""
        load = self.load(self.number - 1)
        by_end = sorted(prompts, key=max)
        kept, left = (by_end[: load.prompts], by_end[load.prompts :]) if kind is SHORT else (by_end, [])
        end = max(max(of) for of in kept)
        every = sorted(length for of in prompts for length in of)
        completed = [length for length in every if length <= end]
        cost = self.cost(every, len(completed), size)
        seconds = cost.seconds
        seconds *= 1 + self.random.uniform(-self.noise, self.noise)
        flat = sorted(length for of in left for length in of)
        if kind is SHORT:
            self.deferred += left
        work = RoundWork(seconds, load.prompt_tokens, _responses(every, end), _responses(flat, end))
        engines = self.devices // size
        tokens = sum(min(length, end) for length in every)
        preemptions, kv_tokens = cost.preemptions, self.truth[size].kv_tokens if self.reports else 0
        return RoundMeasured(self.number, kind, size, engines, preemptions, 0, tokens, 0, 0, 0.0, 0.0, work, kv_tokens)

    def cost(self, every: Sequence[int], completed: int, size: int) -> RoundCost:
        work = Work(len(every), completed, self.load(self.number - 1).prompt_tokens, tuple(every))
        return round_cost(self.truth[size], self.devices // size, self.max_sequences, work)


def _responses(lengths: Sequence[int], end: int) -> Responses:
    done = tuple(length for length in lengths if length <= end)
    return Responses(len(lengths), len(done), done, (end,) * (len(lengths) - len(done)))


@dataclass(frozen=True)
class Outcome:
    """Seconds of all rounds and changes, the changes, and how often the plan of each kind has changed."""

    seconds: float
    changes: int
    plan_changes: int
    sizes: str
    rounds: tuple[tuple[RoundKind, float], ...]


Plan = Callable[[RoundMeasured, RoundKind, int], Mapping[RoundKind, int]]


def drive(job: Job, rounds: int, start: int, plan: Plan) -> Outcome:
    """A job of so many rounds by a plan, which gets each measured round, the next one's kind and how many follow."""
    size, seconds, changes, plan_changes, sizes = start, 0.0, 0, 0, ""
    measured: list[tuple[RoundKind, float]] = []
    wanted: Mapping[RoundKind, int] = {SHORT: start, LONG: start}
    for number in range(rounds):
        kind, prompts = job.round()
        body = job.measure(kind, prompts, size)
        assert body.work is not None
        seconds += body.work.seconds
        measured.append((kind, body.work.seconds))
        sizes += f"{'L' if kind is LONG else ''}{size}"
        before, wanted = wanted, plan(body, job.following, rounds - number - 1)
        plan_changes += sum(wanted[of] != before[of] for of in wanted)
        if number + 1 < rounds and (following := wanted[job.following]) != size:
            size, changes, seconds = following, changes + 1, seconds + job.costs[following]
    return Outcome(seconds, changes, plan_changes, sizes, tuple(measured))


def fixed(job: Job, rounds: int, size: int) -> Outcome:
    """The job with engines of this size throughout."""
    return drive(job, rounds, size, lambda *_: {SHORT: size, LONG: size})


def oracle(of: Mapping[int, Outcome], costs: Mapping[int, float], start: int) -> float:
    """The fewest seconds that any sequence of sizes takes, by what each round took with each size throughout (`of`)."""
    best = {start: 0.0}
    for number in range(len(of[start].rounds)):
        reached = {
            size: min(before + (costs[size] if size != other else 0.0) for other, before in best.items())
            for size in (of if number else (start,))
        }
        best = {size: seconds + of[size].rounds[number][1] for size, seconds in reached.items()}
    return min(best.values())
