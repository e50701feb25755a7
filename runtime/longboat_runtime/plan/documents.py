"""Reads the input of `longboat plan`: a job, the runtime template of its pods, and the model's directory."""

from __future__ import annotations

from pathlib import Path

import yaml

from longboat_crds.load import ApiError, load
from longboat_crds.objects import ClusterRLRuntime, RLJob, RLRuntime
from longboat_crds.yaml_text import dump, parse

Runtime = RLRuntime | ClusterRLRuntime


def read(file: Path, runtime_file: Path | None) -> tuple[RLJob, Runtime | None]:
    """Reads the only RLJob of `file`, and its template from `runtime_file` or else from `file`; None if that has no template.

    Documents of other kinds, such as claims, are skipped. Raises ApiError or OSError.
    """
    objects = _objects(file)
    jobs = [item for item in objects if isinstance(item, RLJob)]
    if len(jobs) != 1:
        raise ApiError([f"{file}: holds {len(jobs)} RLJobs; give a file with exactly one"])
    [job] = jobs
    reference = job.spec.runtime_ref
    runtimes = [item for item in (_objects(runtime_file) if runtime_file else objects) if not isinstance(item, RLJob)]
    if runtime_file and len(runtimes) == 1:
        return job, runtimes[0]
    named = [item for item in runtimes if (item.kind, item.metadata.name) == (reference.kind, reference.name)]
    if runtimes and not named:
        names = ", ".join(f"{item.kind} {item.metadata.name}" for item in runtimes)
        raise ApiError([f"spec.runtimeRef: is {reference.kind} {reference.name}; {runtime_file or file} holds {names}"])
    return job, named[0] if named else None


def _objects(file: Path) -> list[RLJob | Runtime]:
    try:
        documents = [document for document in parse(file.read_text()) if document is not None]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ApiError([f"{file}: not valid YAML: {error}"]) from error
    kinds = ("RLJob", "RLRuntime", "ClusterRLRuntime")
    return [load(dump(item)) for item in documents if isinstance(item, dict) and item.get("kind") in kinds]


def model_directory(job: RLJob, file: Path, model: Path | None) -> Path:
    """Finds a config.json in `model` or else in the job's path or beside `file`; returns its directory. Raises ApiError without one."""
    places = (
        [model] if model else [Path(job.spec.model.path), file.parent / Path(job.spec.model.path).name, file.parent]
    )
    for place in places:
        if (place / "config.json").is_file():
            return place
    looked = ", ".join(str(place) for place in places)
    raise ApiError([f"spec.model.path: no config.json in {looked}; give the model's directory by --model"])
