"""`longboat plan`: what a job takes, and whether it fits."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from longboat_crds.load import ApiError
from longboat_crds.problems import SpecProblem
from longboat_crds.quantities import in_bytes
from longboat_runtime.model_config import checked_model, language_model
from longboat_runtime.plan import documents, report
from longboat_runtime.plan.capacity import Capacity, from_runtime
from longboat_runtime.plan.fit import Case, judge


def plan_file(file: Path, model: Path | None, runtime: Path | None, device: str | None) -> int:
    """Prints the plan of the job in `file`; returns the exit status: 0 if it fits, 1 if it doesn't, 2 if it can't be planned."""
    from longboat_runtime.plan.trace import Traces

    try:
        memory = None if device is None else in_bytes(device)
    except (ArithmeticError, ValueError):
        print(f"--device: {device} is no quantity of bytes, such as 80Gi", file=sys.stderr)
        return 2
    try:
        job, template = documents.read(file, runtime)
        directory = documents.model_directory(job, file, model)
        spec = job.spec.model_copy(update={"model": job.spec.model.model_copy(update={"path": str(directory)})})
        config = language_model(checked_model(directory))
        capacity = from_runtime(template.spec, spec, memory) if template else Capacity(memory, engine_device=memory)
        case = Case(spec, config, config.get("max_position_embeddings"), capacity)
        with warnings.catch_warnings():
            # Of torch's compiler, about the code of models.
            warnings.simplefilter("ignore")
            judgement = judge(case, Traces())
    except (ApiError, SpecProblem, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(report.lines(case, judgement)))
    return 1 if judgement.problems else 0
