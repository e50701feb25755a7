"""What the plan says of cases of the benchmark, in a process of its own: a fake process group and a real one don't go together.

Reads lines of JSON with a `spec` and `fuses`; prints a line with the bytes that a device holds before the step, and its peak beyond that.
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
    """Traces one step of a model whose samples are packed."""
    attention.register()
    phases = trace_rank(spec, attention.NAME, fused=fuses).phases
    before = phases["accumulate"].before
    return {"held": before, "peak": max(phases[name].peak for name in ("accumulate", "update")) - before}


@contextmanager
def started(cases: Sequence[tuple[RLJobSpec, bool]]) -> Iterator[Iterator[Mapping[str, Any]]]:
    """Starts to predict, beside what the block does; yields the predictions, in order, as they come.

    Asking for one raises RuntimeError if the process has ended before.
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
