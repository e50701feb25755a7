"""Compares the GPUs that a runtime template gives trainer pods with those that a job asks for. Pure."""

import re
from typing import Any

from longboat_crds.base import Role
from longboat_crds.runtime import RLRuntimeSpec
from longboat_crds.trainer import TrainerSpec

_GPU = re.compile(r"/gpu$|^nvidia\.com/(mig-|gpu\.shared$)")


def gpu_problem(trainer: TrainerSpec, runtime: RLRuntimeSpec, name: str) -> str | None:
    """Says what is wrong if the template, called `name`, gives trainer pods more or fewer GPUs than they have devices; else None."""
    devices, gpus = trainer.devices_per_pod, trainer_gpus(runtime)
    if gpus is None or gpus[1] == devices:
        return None
    return (
        f"spec.trainer.devicesPerPod: is {devices}, but {name} gives trainer pods {gpus[1]} (spec.{gpus[0]}), and each device has one "
        f"rank: set devicesPerPod to {gpus[1]}, or the limit to {devices}"
    )


def trainer_gpus(runtime: RLRuntimeSpec) -> tuple[str, int] | None:
    """Returns the path of the limit, in the template's spec, that gives trainer pods GPUs, and how many; None without a readable one above 0.

    Rule: a limit of GPUs is one of DOMAIN/gpu, or of parts of GPUs under NVIDIA's names (`nvidia.com/mig-...`, `nvidia.com/gpu.shared`).
    Other devices, such as network cards, aren't counted. `roles.trainer`, which is merged last, has the last word.
    """
    templates = {"common.template": runtime.common.template, "roles.trainer.template": runtime.roles.trainer.template}
    limits: dict[str, tuple[str, Any]] = {}
    try:
        for place, template in templates.items():
            for container in (template.get("spec") or {}).get("containers") or ():
                if container["name"] == Role.TRAINER:
                    path = f"{place}.spec.containers[{Role.TRAINER}].resources.limits"
                    named = (container.get("resources") or {}).get("limits") or {}
                    limits |= {name: (f"{path}[{name}]", count) for name, count in named.items() if _GPU.search(name)}
        counts = {path: int(count) for path, count in limits.values() if count is not None and int(count)}
    except (AttributeError, KeyError, TypeError, ValueError):
        return None  # making the pods reports what is wrong with it
    return (" + ".join(counts), sum(counts.values())) if counts else None
