"""Plans the benchmark's cases in a process of its own: a fake process group can't exist beside a real one.

Reads lines of JSON with `spec` and `fuses`. For each, prints the bytes that a device holds before the step, and its peak beyond that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from longboat_crds.job import RLJobSpec
from longboat_runtime.plan.trace import trace_rank
from longboat_runtime.trainer import attention


def predict(spec: RLJobSpec, *, fuses: bool) -> dict[str, int]:
    """Traces one step of a model with packed samples."""
    attention.register()
    phases = trace_rank(spec, attention.NAME, fused=fuses).phases
    before = phases["accumulate"].before
    return {"held": before, "peak": max(phases[name].peak for name in ("accumulate", "update")) - before}


@contextmanager
def started(cases: Sequence[tuple[RLJobSpec, bool]]) -> Iterator[Iterator[Mapping[str, Any]]]:
    """Starts to predict while the block runs; yields an iterator over the predictions, in order.

    The iterator waits for the next prediction, and raises RuntimeError if the process ends without it.
    """
    with tempfile.TemporaryFile("w+") as file:
        for spec, fuses in cases:
            file.write(json.dumps({"spec": spec.model_dump(mode="json"), "fuses": fuses}) + "\n")
        file.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.size.predicted"],
            stdin=file,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )
    try:
        yield _predictions(process)
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def _predictions(process: subprocess.Popen[str]) -> Iterator[Mapping[str, Any]]:
    assert process.stdout is not None
    while line := process.stdout.readline():
        yield json.loads(line)
    raise RuntimeError(f"bench.size.predicted ended with exit status {process.wait()}")


if __name__ == "__main__":
    for line in sys.stdin:
        case = json.loads(line)
        print(json.dumps(predict(RLJobSpec.model_validate(case["spec"]), fuses=case["fuses"])), flush=True)
