"""Runs `longboat plan`, which says what a job needs and whether it fits."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from pathlib import Path

from longboat_crds.gpus import gpu_problem
from longboat_crds.load import ApiError
from longboat_crds.problems import SpecProblem
from longboat_runtime.plan import documents, report
from longboat_runtime.plan.capacity import Capacity, claim_size, from_runtime, memory_of
from longboat_runtime.plan.fit import Case, judge
from longboat_runtime.plan.needs import GIB


def plan_file(file: Path, model: Path | None, runtime: Path | None, device: str | None) -> int:
    """Prints the plan of the job in `file`. Returns the exit status: 1 if it certainly doesn't fit, 2 if it can't be planned, else 0."""
    from longboat_runtime.plan.trace import Traces, model_values

    try:
        memory = None if device is None else memory_of("--device", device)
        if memory is not None and memory < GIB:
            raise ApiError([f"--device: {device} is {memory} bytes, less than any GPU has; write it like 80Gi"])
        job, template = documents.read(file, runtime)
        if template and (
            problem := gpu_problem(job.spec.trainer, template.spec, f"{template.kind} {template.metadata.name}")
        ):
            raise ApiError([problem])
        directory = documents.model_directory(job, file, model)
        spec = job.spec.model_copy(update={"model": job.spec.model.model_copy(update={"path": str(directory)})})
        capacity = from_runtime(template.spec) if template else Capacity()
        claim = claim_size(spec.checkpoint)
        case = Case(spec, model_values(directory), replace(capacity, device=memory, engine_device=memory, claim=claim))
        with warnings.catch_warnings():
            # torch's compiler warns about the code of models.
            warnings.simplefilter("ignore")
            judgement = judge(case, Traces())
    except (ApiError, SpecProblem, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    except Exception as error:  # noqa: BLE001 - whatever an architecture raises that can't be traced
        print(
            f"spec.model: this model can't be planned ({error!r}). A job trains it without a plan, and recomputes its layers unless "
            "trainer.gradientCheckpointing is false.",
            file=sys.stderr,
        )
        return 2
    print("\n".join(report.lines(case, judgement)))
    return 1 if judgement.problems else 0
