"""Table of the operator benchmark."""

from __future__ import annotations

from pathlib import Path
from statistics import quantiles
from typing import Any

from bench.record import newest_run

# What is allowed: milliseconds of CPU for a plan, seconds of waiting for the oldest key, cores, seconds to a grant.
PLAN_MS = 2.0
OLDEST_SECONDS = 2.0
CORES = 0.5
GRANT_SECONDS = 1.0
# Bars of the long queue: jobs planned, as a multiple of the first release's, and plans before that of a small namespace.
QUEUED_RATIO = 4
PLANS_BEFORE = 100
REQUEST_MS = 30
# Milliseconds of a million additions on a processor of which another tenant takes nothing.
FULL_SPEED_MS = 45.0


def write(raw: Path) -> None:
    """Writes `operator.md` beside the raw file, from its newest run."""
    run, *lines = newest_run(raw)
    by_kind = {line["kind"]: line for line in lines}
    machine, settings = run["machine"], run["settings"]
    text = [
        "# What the operator costs",
        "",
        (
            f"{machine['processor']}, {machine['cpus']} CPUs, load {machine['load']:.0f} when the run began, "
            f"python {run['versions']['python']}, commit {run['commit']}."
        ),
        "",
        "| measured | found | bar |",
        "|---|---|---|",
        *_rows(by_kind, settings),
        "",
        (
            f"The {settings['jobs']} jobs of seven pods change their demand every {settings['period']:g} s, evenly spread, between two and "
            "three rollout pods, which come, are drained and go. They run against an API server in memory, in the operator's own process, whose "
            "CPU isn't counted; what the operator has to decode is, HTTP and kopf are not. The latencies are those of the operator as a process on a real API "
            "server, two demands a second; its CPU for each has HTTP and kopf in it."
        ),
    ]
    raw.with_suffix(".md").write_text("\n".join(text) + "\n")


def _rows(by_kind: dict[str, dict[str, Any]], settings: dict[str, Any]) -> list[str]:
    rows = []
    if plans := by_kind.get("plans"):
        rows += [
            f"| CPU of a plan of a converged job of 20 pods | {plans['job_ms']:.2f} ms | {PLAN_MS:g} ms |",
            f"| CPU of a plan of its capacity | {plans['capacity_ms']:.2f} ms | {PLAN_MS:g} ms |",
            *(
                [
                    f"| CPU of a plan of a converged job whose 4 x 8 reward pods share CPUs | {plans['reward_job_ms']:.2f} ms | {PLAN_MS:g} ms |",
                    f"| CPU of a plan of its capacity | {plans['reward_capacity_ms']:.2f} ms | {PLAN_MS:g} ms |",
                ]
                if "reward_job_ms" in plans
                else []
            ),
            *(
                [f"| CPU of a million additions in Python, to compare machines by | {plans['loop_ms']:.0f} ms | |"]
                if "loop_ms" in plans
                else []
            ),
        ]
    if many := by_kind.get("many_jobs"):
        rate = many["demands"] / many["wall_seconds"]
        rows += [
            f"| {rate:.0f} changed demands a second: the longest that a key waited | {many['oldest_seconds']:.2f} s | {OLDEST_SECONDS:g} s |",
            f"| the same: CPU | {many['cores']:.2f} cores | {CORES:g} cores |",
            f"| the same: requests | {many['requests_per_second']:.0f} a second | |",
        ]
        if loop := many.get("loop_ms"):
            rows.append(f"| the same: CPU of a million additions meanwhile | {loop:.0f} ms | |")
        if full := [cores for cores, *loops in many.get("slices", ()) if max(loops) <= FULL_SPEED_MS]:
            text = f"| the same: CPU in the {len(full)} of {len(many['slices'])} seconds in which they took at most {FULL_SPEED_MS:g} ms"
            rows.append(f"{text} | {sum(full) / len(full):.2f} cores | {CORES:g} cores |")
    if queued := by_kind.get("queued"):
        before, now = queued["before"], queued["now"]
        rates = (
            f"{now['jobs_per_second']:.1f} a second, {before['jobs_per_second']:.1f} by the first release's operator"
        )
        rows += [
            f"| {settings['keys']} keys queued at once, {REQUEST_MS} ms a request: jobs planned | {rates} | {QUEUED_RATIO} times as many |",
            f"| the same: plans before the first of a small namespace | {now['plans_before_the_small_namespace']} | {PLANS_BEFORE} |",
            f"| the same: looks at its health that found it unhealthy | {now['unhealthy_samples']} | 0 |",
        ]
    if latency := by_kind.get("latency"):
        cuts = quantiles(latency["seconds"], n=100)
        rows += [
            f"| demand written to grant read, median of {len(latency['seconds'])} | {cuts[49]:.2f} s | {GRANT_SECONDS:g} s |",
            f"| the same, 95th percentile | {cuts[94]:.2f} s | |",
            f"| the operator's CPU for one demand | {latency['operator_cpu_ms']:.0f} ms | |",
        ]
    return rows
