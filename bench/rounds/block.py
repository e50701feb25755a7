"""One arm on one seed: a whole job, by the production driver, and what its log says."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from bench.rounds.components import block_components, quiet
from bench.rounds.tasks import Task
from longboat_crds.job import RLJobSpec
from longboat_runtime.driver.broker import LocalBroker
from longboat_runtime.driver.components import Components
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.loop import Driver
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.driver.reporter import Reporter
from longboat_runtime.driver.stages import StageClock
from longboat_runtime.eventlog import end_of, surviving
from longboat_runtime.metrics.record import JsonLines, Record, read_records
from longboat_runtime.metrics.reports import Reports
from longboat_runtime.rollout.step_times import merged
from longboat_runtime.rounds import events, measurements
from longboat_runtime.rounds.policies import open_policy
from longboat_runtime.samples import PromptId, SampleId

# Not a part of a step here: they come once in a block, or not at all.
_APART = ("timing_s/testing", "timing_s/save_checkpoint")


async def run_block(task: Task, spec: RLJobSpec, components: Components, root: Path) -> tuple[Job, dict[str, Any]]:
    """Runs the job into `root`; returns it and the block's raw values."""
    job = Job("bench", spec, root, 1)
    reports = Reports([JsonLines(job.home / "metrics.jsonl")], time.time)
    broker = LocalBroker(1)
    reporter = Reporter(job, broker, reports, StageClock(time.monotonic), time.time)
    began = time.monotonic()
    driver = Driver(job, block_components(components, job, task), open_policy(spec), reporter, broker, time.time)
    if await driver.run() is not RunOutcome.DONE:
        raise RuntimeError("the block did not run to its end")
    reports.close()
    await quiet(components)
    log = [event.body for event in surviving(root, end_of(root, 1))]
    step_times = merged(body.step_times for body in log if isinstance(body, measurements.RoundMeasured))
    curve = {str(batch): [times.steps, times.seconds] for batch, times in sorted(step_times.items())}
    return job, {"wall": time.monotonic() - began, "curve": curve, **steps(read_records(root)), **fates(log)}


def steps(records: list[Record]) -> dict[str, list[float]]:
    """Reads, for each step, its seconds, those of rollout, those of training and publication, and 1 if its round was long, else 0.

    `train` are the seconds of the step itself, `stream` those of its chunks before it, `overlap` those of chunks in which samples ran;
    `share` is that of its `tokens`, prompts included, that were trained in `chunks`. Its seconds are without evaluation, and without what
    training waited for a checkpoint.
    """
    made = [record.metrics for record in records if record.step]
    return {
        "step": [metrics["timing_s/step"] - sum(metrics.get(name, 0.0) for name in _APART) for metrics in made],
        "rollout": [metrics["timing_s/gen"] for metrics in made],
        "train": [metrics["timing_s/update_actor"] for metrics in made],
        "update": [metrics["timing_s/update_actor"] + metrics["timing_s/update_weights"] for metrics in made],
        "tokens": [metrics["perf/total_num_tokens"] for metrics in made],
        **{
            name: [metrics.get(metric, 0.0) for metrics in made]
            for name, metric in {
                "stream": "timing_s/stream",
                "chunks": "stream/chunks",
                "share": "stream/token_share",
                "overlap": "stream/overlap_s",
            }.items()
        },
        "long": [metrics["tail/round_kind"] for metrics in made],
    }


def fates(log: list[events.Body]) -> dict[str, Any]:
    """Reads what was drawn in which order, and for each launched group: epoch, row, attempt, tokens by index, indices trained.

    A response that was paused and continued has all its tokens. A response that was stopped after n tokens has -1 - n; one that
    neither ended nor was stopped has None.
    """
    drawn: list[PromptId] = []
    tokens: dict[tuple[PromptId, int], list[int | None]] = {}
    trained: dict[tuple[PromptId, int], list[int]] = {}
    for body in log:
        match body:
            case events.Drawn(prompts=prompts):
                drawn += prompts
            case events.Launched(prompt=prompt, attempt=attempt, samples=samples):
                tokens[prompt, attempt] = [None] * samples
            case events.Generated(sample=sample, tokens=count):
                tokens[sample.prompt, sample.attempt][sample.index] = count
            case events.Stopped(sample=sample, tokens=count):
                tokens[sample.prompt, sample.attempt][sample.index] = -1 - count
            case events.StepCommitted(samples=samples):
                for sample in samples:
                    trained.setdefault((sample.prompt, sample.attempt), []).append(sample.index)
    groups = [
        [*prompt, attempt, counts, trained.get((prompt, attempt), [])]
        for (prompt, attempt), counts in sorted(tokens.items())
    ]
    return {"drawn": [list(prompt) for prompt in drawn], "groups": groups}


def ended(block: dict[str, Any]) -> dict[SampleId, int]:
    """Returns the number of tokens of each response that ended without being stopped."""
    return {sample: count for sample, count in _generated(block) if count >= 0}


def stopped(block: dict[str, Any]) -> dict[SampleId, int]:
    """Returns the number of tokens of each response that was stopped."""
    return {sample: -1 - count for sample, count in _generated(block) if count < 0}


def _generated(block: dict[str, Any]) -> list[tuple[SampleId, int]]:
    return [
        (SampleId(epoch, row, attempt, index), count)
        for epoch, row, attempt, tokens, _ in block["groups"]
        for index, count in enumerate(tokens)
        if count is not None
    ]


def trained_tokens(block: dict[str, Any]) -> dict[PromptId, list[int]]:
    """Returns the numbers of tokens of trained responses, by prompt."""
    return {
        PromptId(epoch, row): [tokens[index] for index in indices]
        for epoch, row, _, tokens, indices in block["groups"]
        if indices
    }


def generated_tokens(block: dict[str, Any]) -> int:
    """Counts the tokens of all responses that ended or were stopped."""
    return sum(ended(block).values()) + sum(stopped(block).values())
