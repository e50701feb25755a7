"""What a reward function costs by itself: called in a loop, and in a fork for each call. One process, which holds nothing else.

And what no grade of a process of its own can cost less than: a fork that enters the graders' sandbox and ends.

`python -m bench.grading.bare TASK GRADES SEED` prints it as JSON.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.grading.responses import QUICKSTART, responses
from longboat_crds.reward_kinds import RewardKind, RewardSignature
from longboat_graders import prctl
from longboat_graders.adapters import Scorer, load_scorer
from longboat_graders.messages import RewardFunction
from longboat_graders.result import RewardSample
from longboat_graders.sandbox import Limits, Sandbox, limit_all
from longboat_graders.seccomp import Filter, own_program, shared_program

FORKS = 200


@dataclass(frozen=True)
class Task:
    """`reward` is the part of a RewardSpec that names the function; `verl` says whether it needs verl."""

    reward: dict[str, str]
    verl: bool = False


_VERL = {"function": "verl.utils.reward_score:default_compute_score", "signature": "Verl"}
TASKS = {
    "quickstart": Task({"function": f"{QUICKSTART}/reward.py:reward"}),
    "gsm8k": Task(_VERL, verl=True),
    "math_dapo": Task(_VERL, verl=True),
    "accuracy": Task({"function": "trl.rewards:accuracy_reward", "signature": "TRL"}),
}


def measure(task: str, grades: int, seed: int) -> dict[str, Any]:
    """Measures the CPU milliseconds of a call, and of a fork that does nothing, calls, or enters the sandbox.

    Returns them with the scores. Confines this process too, for good.
    """
    named = TASKS[task].reward
    signature = RewardSignature(named.get("signature", "Longboat"))
    # Without a RewardSpec: its library isn't in the processes that grade.
    reward = RewardFunction("reward", RewardKind.FUNCTION, signature, named["function"], None, {})
    score = load_scorer(reward, "spec.rewards[0]")
    samples = list(responses(task, grades, seed))
    gc.collect()
    gc.freeze()
    forked = _forked(score, samples)
    fork = median(_fork(lambda: None) for _ in range(FORKS))
    for sample in responses(task, 256, -1):
        score(sample)
    scores: list[float | None] = []
    began = time.process_time()
    for sample in samples:
        random.seed(0)
        result = score(sample)
        scores.append(None if result is None else result.score)
    own = time.process_time() - began
    return {
        "function_ms": 1e3 * own / grades,
        "fork_ms": 1e3 * fork,
        "forked_ms": 1e3 * forked,
        "confined_ms": 1e3 * _confined(),
        "scores": scores,
    }


def _forked(score: Scorer, samples: Sequence[RewardSample]) -> float:
    """Measures the mean CPU seconds of forking, calling and ending, over at least FORKS of the samples, or all if there are fewer."""
    some = samples[:: max(1, len(samples) // FORKS)]
    return sum(_fork(lambda sample=sample: score(sample)) for sample in some) / len(some)


def _confined() -> float:
    """Measures the median CPU seconds of forking into the sandbox as a zygote does. Confines this process too, for good."""
    prctl.gain_no_privileges()
    machine = os.uname().machine
    with tempfile.TemporaryDirectory(prefix="longboat-") as scratch:
        sandbox = Sandbox(f"{scratch}/grade", Limits())
        calls = Filter(own_program([1, os.getppid(), os.getpid()], machine))
        limit_all(Limits())
        Filter(shared_program(machine)).install()
        sandbox.prepare()
        seconds = median(_fork(lambda: sandbox.enter(calls)) for _ in range(FORKS))
        os.chdir("/")
    return seconds


def _fork(call: Callable[[], Any]) -> float:
    began = time.process_time()
    pid = os.fork()
    if pid == 0:
        call()
        os._exit(0)
    _, _, used = os.wait4(pid, 0)
    return time.process_time() - began + used.ru_utime + used.ru_stime


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
