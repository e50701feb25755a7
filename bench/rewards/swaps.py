"""A job whose load swaps between two reward pools, and the arms that grade it with the same CPUs.

Seven in eight prompts of a round are of one domain, and after so many rounds they are of the other. Each domain has a reward of its
own, whose grades compute for as long as their row says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from e2e import small_job

DOMAINS = ("code", "math")
PROMPTS, GROUP = 8, 4
HEAVY = 7
GRADES = PROMPTS * GROUP
# A row's grades take between a half and one and a half of the mean, before all of its round are scaled alike.
LEAST, MOST = 0.5, 1.5
GRADERS_PER_POD = 2
# No grade comes near this.
TIMEOUT_SECONDS = 600
FUNCTION_FILE = "compute.py"
FUNCTION = '''"""Grades that compute for as long as their row says."""

import time


def grade(sample):
    end = time.process_time() + sample.columns["cpu_seconds"]
    while time.process_time() < end:
        pass
    letters = [c for c in sample.text if c.isalpha()]
    return sum(c in "aeiou" for c in letters) / max(1, len(letters))
'''

Rows = list[dict[str, Any]]
Pools = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Trace:
    """What is graded in each of `rounds`: the same for the same seed. The grades of a round take `work` CPU seconds together.

    Round 1 warms up, and has the other load than rounds 2 to 1 + `swap`; from then on the load swaps every `swap` rounds. So the share
    of rounds after the first that begin with a swap is one in `swap`. Odd seeds begin with the other domain.
    """

    seed: int
    rounds: int
    swap: int
    work: float

    def heavy(self, number: int) -> str:
        """Returns the domain of most prompts of a round."""
        return DOMAINS[(self.seed + (number - 2) // self.swap + 1) % 2]

    def rows(self) -> Rows:
        """Makes the rows of the dataset, in the order in which they are drawn."""
        return [row for number in range(1, self.rounds + 1) for row in self._round(number)]

    def _round(self, number: int) -> Rows:
        generator = np.random.default_rng((self.seed, number))
        heavy = self.heavy(number)
        light = next(domain for domain in DOMAINS if domain != heavy)
        domains = generator.permutation([heavy] * HEAVY + [light] * (PROMPTS - HEAVY))
        cpu = generator.uniform(LEAST, MOST, PROMPTS)
        cpu *= self.work / (GROUP * cpu.sum())
        return [
            {
                "prompt": f"say {(number - 1) * PROMPTS + place}",
                "answer": "",
                "domain": str(domain),
                "cpu_seconds": round(float(seconds), 6),
            }
            for place, (domain, seconds) in enumerate(zip(domains, cpu, strict=True))
        ]


def fixed_halves(total: int) -> Pools:
    """Makes a pool for each domain, with half of `total` millicores whatever comes."""
    half = {"min": f"{total // 2}m", "max": f"{total // 2}m"}
    return [{"name": domain, "gradersPerPod": GRADERS_PER_POD, "cpu": half} for domain in DOMAINS]


def moving(total: int, replicas: int = 1) -> Pools:
    """Makes a pool of `replicas` pods for each domain, without bounds: CPUs go to the pool that waits."""
    return [{"name": domain, "replicas": replicas, "gradersPerPod": GRADERS_PER_POD} for domain in DOMAINS]


def one_shared(total: int) -> Pools:
    """Makes one pool that grades both domains."""
    return [{"name": "all", "gradersPerPod": GRADERS_PER_POD}]


ARMS = {"fixed": fixed_halves, "moving": moving, "shared": one_shared}


def write(trace: Trace, data: Path) -> None:
    """Writes the dataset and the function, where pods see them."""
    files = {
        _dataset(trace): "".join(json.dumps(row) + "\n" for row in trace.rows()),
        FUNCTION_FILE: FUNCTION,
    }
    for name, text in files.items():
        (data / name).write_text(text)
        (data / name).chmod(0o644)


def job_spec(trace: Trace, pools: Pools, total: int) -> Mapping[str, Any]:
    """Makes the spec of a job that trains every round of the trace, once `write` has written it, and ends. `total` is in millicores."""
    names = [pool["name"] for pool in pools]
    rewards = [
        {
            "name": domain,
            "function": f"/data/{FUNCTION_FILE}:grade",
            "pool": domain if domain in names else names[0],
            "domains": [domain],
            "timeoutSeconds": TIMEOUT_SECONDS,
        }
        for domain in DOMAINS
    ]
    return small_job.spec(
        dataset={
            "files": {"paths": [f"/data/{_dataset(trace)}"]},
            "columns": {"domain": "domain"},
            "shuffle": False,
        },
        # It drops no group, so each round has the rows that it should.
        algorithm={"name": "ReinforcePlusPlus", "groupSize": GROUP},
        rounds={"policy": "Synchronous", "steps": trace.rounds, "promptsPerRound": PROMPTS},
        rewardCpu={"total": f"{total}m"},
        rewardPools=pools,
        rewards=rewards,
        checkpoint={"everySteps": trace.rounds, "graceSeconds": 60, "reclaimPolicy": "Delete"},
    )


def _dataset(trace: Trace) -> str:
    return f"swaps-{trace.seed}.jsonl"
