"""From a round's last response to its last grade, with the same CPUs in fixed halves, moving, and in one shared pool."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.rewards import swaps
from bench.rewards.swaps import ARMS, PROMPTS, Trace
from e2e import volumes
from e2e.cluster.errors import ClusterError
from e2e.cluster.waiting import wait_until
from e2e.jobs import Job, JobFailedError
from e2e.site import Site
from longboat_runtime.eventlog import read_log
from longboat_runtime.rounds import events, measurements
from longboat_runtime.rounds.events import Event
from longboat_runtime.samples import GradeKind

# Grading takes twice as long as with all CPUs at most, and a round so much beyond that; a job starts in less than `START_SECONDS`.
BEYOND_SECONDS, START_SECONDS = 30.0, 300.0


@dataclass(slots=True)
class Graded:
    """One round. `seconds` are from its last response to its last grade, `generating` those from its opening to its last response.

    `ended` is when each domain had its last grade, in seconds after the last response. `cpu` are the CPU seconds that graders used, by
    pool. `asked` and `granted` are CPUs by pool, with the seconds after the last response.
    """

    round: int
    rows: list[int] = field(default_factory=list)
    seconds: float = 0.0
    generating: float = 0.0
    grades: int = 0
    scored: int = 0
    ended: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    asked: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    granted: list[tuple[float, dict[str, float]]] = field(default_factory=list)


def rounds_of(log: Iterable[Event]) -> list[Graded]:
    """Collects what became of each round, in order, from a log in which none overlaps with another. Pure."""
    rounds: list[Graded] = []
    opened = generated = graded = 0.0
    changes: list[tuple[str, float, dict[str, float]]] = []
    for event in log:
        body, at = event.body, event.time
        if isinstance(body, events.RoundOpened):
            rounds.append(Graded(body.round))
            opened = generated = graded = at
            changes = []
        elif not rounds:
            continue
        elif isinstance(body, events.Launched):
            rounds[-1].rows.append(body.prompt.row)
        elif isinstance(body, events.Generated):
            generated = at
        elif isinstance(body, events.Graded):
            graded = at
            rounds[-1].ended |= dict.fromkeys(body.parts, at)
            rounds[-1].grades += 1
            rounds[-1].scored += body.kind is GradeKind.SCORED
        elif isinstance(body, measurements.CpusAsked):
            changes.append(("asked", at, dict(body.pools)))
        elif isinstance(body, measurements.CpusGranted):
            changes.append(("granted", at, dict(body.pools)))
        elif isinstance(body, measurements.RoundGraded):
            round_ = next(round_ for round_ in rounds if round_.round == body.round)
            round_.cpu = {name: pool.cpu_seconds for name, pool in body.pools.items()}
        elif isinstance(body, events.StepCommitted):
            last = rounds[-1]
            last.seconds, last.generating = round(graded - generated, 3), round(generated - opened, 3)
            last.ended = {domain: round(when - generated, 3) for domain, when in last.ended.items()}
            for kind, when, pools in changes:
                (last.asked if kind == "asked" else last.granted).append((round(when - generated, 3), pools))
    return rounds


def flaws(trace: Trace, graded: list[Graded], incarnations: int) -> Iterator[str]:
    """Yields what makes a block void: rounds that aren't those of the trace, missing or unscored grades, more than one driver. Pure."""
    if len(graded) != trace.rounds:
        yield f"{len(graded)} rounds"
    for round_ in graded:
        due = range((round_.round - 1) * PROMPTS, round_.round * PROMPTS)
        if sorted(round_.rows) != list(due):
            yield f"round {round_.round} has rows {sorted(round_.rows)}"
        if round_.scored != swaps.GRADES or round_.grades != swaps.GRADES:
            yield f"round {round_.round} has {round_.scored} scores of {round_.grades} grades"
    if incarnations != 1:
        yield f"{incarnations} drivers"


def block(site: Site, arm: str, trace: Trace, total: int) -> dict[str, Any]:
    """Runs one arm, from the job's start to its end; returns all that is recorded of it. A job that fails or is late makes it void."""
    swaps.write(trace, site.data)
    job = Job(site.cluster, site.namespace, f"{arm}-{trace.seed}")
    seconds = START_SECONDS + trace.rounds * (2000 * trace.work / total + BEYOND_SECONDS)
    load = os.getloadavg()[0]
    values: dict[str, Any] = {"arm": arm, "seed": trace.seed, "load": load, "rounds": []}
    try:
        job.apply(dict(swaps.job_spec(trace, ARMS[arm](total), total)))
        wait_until(job.has_succeeded, f"{job.name} has not succeeded", seconds, interval=0.5)
        log = list(read_log(volumes.folder(site.cluster, site.namespace, f"{job.name}-checkpoint")))
        restarts = job.status().get("restarts", 0)
    except (ClusterError, JobFailedError) as error:
        return {**values, "void": [str(error).split("\n", 1)[0]]}
    finally:
        job.delete()
    graded = rounds_of(log)
    void = list(flaws(trace, graded, len({event.incarnation for event in log})))
    if restarts:
        void.append(f"{restarts} restarts")
    return {**values, "rounds": [asdict(round_) for round_ in graded], "void": void}
