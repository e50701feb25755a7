"""The metrics of a training batch and its round: rewards, lengths, versions, counts. Pure. Names are verl's where it has the metric."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from longboat_graders.result import LEFT_OUT, MOST_METRICS
from longboat_runtime.rounds.events import DropReason
from longboat_runtime.rounds.measurements import RoundGraded, RoundMeasured
from longboat_runtime.rounds.records import RoundRecord, SampleRecord
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.samples import FinishReason, GradeKind, SampleId


def batch_metrics(
    samples: Sequence[SampleRecord], rewards: Sequence[float | None], advantages: Sequence[float]
) -> dict[str, float]:
    """Returns the metrics of the samples of a step's batch; `rewards` and `advantages` are in the same order.

    `reward/parts/NAME` is over the samples that the function scored.
    """
    scores = [reward for reward in rewards if reward is not None]
    parts: dict[str, list[float]] = {}
    for sample in samples:
        for name, score in sorted(sample.parts.items()):
            if score is not None:
                parts.setdefault(name, []).append(score)
    metrics = {
        "training/samples": float(len(samples)),
        **spread("critic/score", scores),
        **spread("critic/rewards", scores),
        **spread("critic/advantages", advantages),
        **spread("prompt_length", [float(sample.prompt_tokens) for sample in samples]),
        **response_lengths(samples),
        **spread("reward/seconds", [sample.grading_seconds for sample in samples]),
        "perf/total_num_tokens": float(sum(sample.size.computed for sample in samples)),
    }
    for name, values in parts.items():
        metrics |= spread(f"reward/parts/{name}", values)
    return metrics


class ExtraMetrics:
    """The numbers that reward functions give besides scores: for each function the first MOST_METRICS keys that this driver meets."""

    def __init__(self) -> None:
        self._keys: dict[str, set[str]] = {}

    def means(self, samples: Sequence[SampleRecord]) -> dict[str, float]:
        """Computes `reward/extra/NAME/KEY/mean` over the samples for which the function gave that number.

        `left_out` is the mean number of other keys, over the samples that have any.
        """
        values: dict[str, list[float]] = {}
        for sample in samples:
            left_out: dict[str, float] = {}
            for name, value in sorted(sample.metrics.items()):
                function, _, key = name.partition("/")
                keys = self._keys.setdefault(function, set())
                if key == LEFT_OUT:
                    left_out[function] = left_out.get(function, 0.0) + value
                elif key in keys or len(keys) < MOST_METRICS:
                    keys.add(key)
                    values.setdefault(name, []).append(value)
                else:
                    left_out[function] = left_out.get(function, 0.0) + 1.0
            for function, count in left_out.items():
                values.setdefault(f"{function}/{LEFT_OUT}", []).append(count)
        return {f"reward/extra/{name}/mean": sum(value / len(own) for value in own) for name, own in values.items()}


def response_lengths(samples: Sequence[SampleRecord]) -> dict[str, float]:
    """Computes `response_length/*` in tokens; `tail_ratio` is the longest over the median. Empty without samples.

    `clip_ratio` is the share of responses cut by maxTokens, `repetition_ratio` of those ended for repeating themselves.
    """
    if not samples:
        return {}
    lengths = [float(sample.tokens) for sample in samples]
    reasons = [sample.finish_reason for sample in samples]
    middle = percentile(lengths, 0.5)
    return {
        **spread("response_length", lengths),
        "response_length/p50": middle,
        "response_length/p90": percentile(lengths, 0.9),
        "response_length/p99": percentile(lengths, 0.99),
        "response_length/tail_ratio": max(lengths) / max(middle, 1.0),
        "response_length/clip_ratio": reasons.count(FinishReason.LENGTH) / len(lengths),
        "response_length/repetition_ratio": reasons.count(FinishReason.REPETITION) / len(lengths),
    }


def staleness(samples: Sequence[SampleRecord], version: int) -> dict[str, float]:
    """Measures how many steps the weights that drew the batch are behind those that are trained (`version`).

    By verl's names: of each sample's newest token (`trajectory_staleness`) and its oldest (`_worst`), and how many spans of one version
    it has (`trajectory_spans`). Of samples that several versions drew: their number, share and largest distance between versions
    (`fully_async/partial/*`). Ours: `token_staleness`, over all response tokens. Samples without tokens aren't counted.
    """
    drawn = [sample.spans for sample in samples if sample.spans]
    if not drawn:
        return {}
    versions = [[span.version for span in spans] for spans in drawn]
    ranges = [(min(each), max(each)) for each in versions]
    tokens = [(version - span.version, span.end - span.start) for spans in drawn for span in spans]
    total = sum(count for _, count in tokens)
    partial = sum(oldest < newest for oldest, newest in ranges)
    prefix = "training/off_policy"
    return {
        **spread(f"{prefix}/trajectory_staleness", [float(version - newest) for _, newest in ranges]),
        **spread(f"{prefix}/trajectory_staleness_worst", [float(version - oldest) for oldest, _ in ranges]),
        **spread(f"{prefix}/trajectory_spans", [float(len(spans)) for spans in drawn]),
        f"{prefix}/token_staleness/mean": sum(steps * count for steps, count in tokens) / total,
        f"{prefix}/token_staleness/max": float(max(steps for steps, _ in tokens)),
        "fully_async/partial/total_partial_num": float(partial),
        "fully_async/partial/partial_ratio": partial / len(ranges),
        "fully_async/partial/max_partial_span": float(max(newest - oldest for oldest, newest in ranges)),
    }


def stream_metrics(
    round_: RoundRecord, samples: Mapping[SampleId, SampleRecord], overlap_seconds: float
) -> dict[str, float]:
    """Counts the chunks of a step and their share of the tokens of its `samples`, prompts included.

    `overlap_seconds` are those of chunks in which samples ran.
    """
    tokens = {sample: record.size.computed for sample, record in samples.items()}
    streamed = sum(count for sample, count in tokens.items() if sample.prompt in round_.streamed)
    return {
        "stream/chunks": float(round_.accumulated),
        "stream/token_share": streamed / max(1, sum(tokens.values())),
        "stream/overlap_s": overlap_seconds,
    }


def round_metrics(round_: RoundRecord, kept_tokens: int, dropped: DropReason | None = None) -> dict[str, float]:
    """Counts what became of everything that the round launched or adopted, decided groups included.

    `kept_tokens` are the batch's response tokens. `dropped` says why the batch was dropped in the end, if it was.
    `rollout/domains/DOMAIN/*` are there where domains have quotas.
    """
    if dropped is not None:
        round_, kept_tokens = round_.without_batch(dropped), 0
    grades = sum(round_.grades.values())
    made = round_.generated_tokens + round_.stopped_tokens
    return {
        "training/round": float(round_.number),
        "rollout/generated_tokens": float(round_.generated_tokens),
        "rollout/stopped_tokens": float(round_.stopped_tokens),
        "rollout/redrawn_tokens": float(round_.redrawn_tokens),
        "tail/generated_to_kept": made / kept_tokens if kept_tokens else 0.0,
        "rollout/launched_groups": float(round_.launched),
        "rollout/generated": float(round_.generated),
        "rollout/surplus": float(round_.surplus),
        "rollout/lost": float(round_.lost),
        "rollout/kept_groups": float(len(round_.kept)),
        "rollout/carried_groups": float(round_.carried),
        "rollout/adopted_groups": float(round_.adopted),
        "rollout/deferred_groups": float(sum(round_.deferred.values())),
        **{f"rollout/dropped_groups/{reason}": float(round_.dropped.get(reason, 0)) for reason in DropReason},
        **{f"reward/grades/{kind}": float(round_.grades.get(kind, 0)) for kind in GradeKind},
        "reward/timeout_rate": round_.grades.get(GradeKind.TIMEOUT, 0) / max(grades, 1),
        "tail/round_kind": float(round_.kind is RoundKind.LONG),
        **{
            f"rollout/domains/{domain}/{name}": float(count)
            for domain, part in round_.parts.items()
            for name, count in (
                ("launched_groups", part.launched),
                ("kept_groups", len(part.kept)),
                ("deferred_groups", sum(part.deferred.values())),
                ("dropped_groups", sum(part.dropped.values())),
            )
        },
    }


def load_metrics(measured: RoundMeasured) -> dict[str, float]:
    """Returns what engines felt in a round."""
    return {
        "rollout/engines": float(measured.engines),
        "rollout/tensor_parallel": float(measured.tensor_parallel),
        "rollout/preemptions": float(measured.preemptions),
        "rollout/interrupted": float(measured.interrupted),
        "rollout/engine_tokens": float(measured.generated_tokens),
        "rollout/running/max": float(measured.running),
        "rollout/waiting/max": float(measured.waiting),
        "rollout/kv_usage/max": measured.kv_usage,
        "rollout/step_seconds/mean": measured.step_seconds,
    }


def grading_metrics(graded: RoundGraded) -> dict[str, float]:
    """Returns what each reward pool did in a round. A pool that graded nothing has no `cpu_seconds/mean`."""
    metrics: dict[str, float] = {}
    for name, pool in graded.pools.items():
        prefix = f"reward/pools/{name}"
        metrics |= {
            f"{prefix}/arrived": float(pool.arrived),
            f"{prefix}/graded": float(pool.graded),
            f"{prefix}/waiting/max": float(pool.waiting),
            f"{prefix}/queue_seconds/max": pool.queue_seconds,
        }
        if pool.graded:
            metrics[f"{prefix}/cpu_seconds/mean"] = pool.cpu_seconds / pool.graded
    return metrics


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least `share` (0..1) of the values don't exceed (nearest rank). Raises ValueError if empty."""
    if not values:
        raise ValueError("no values")
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """Computes `name/mean`, `name/max` and `name/min`; empty without values."""
    if not values:
        return {}
    return {f"{name}/mean": math.fsum(values) / len(values), f"{name}/max": max(values), f"{name}/min": min(values)}
