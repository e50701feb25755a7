"""The plan of a job that starts on GPUs: made once, before any pod loads the model."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import structlog
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from longboat_crds.job import RLJobSpec
from longboat_crds.problems import spec_problem_in
from longboat_runtime.trainer.placement import has_gpus, pod_nodes

log = structlog.get_logger()

# How often Ray is asked for the job's nodes, in seconds.
NODES_SECONDS = 0.5
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the point is shared memory


@dataclass(frozen=True, slots=True)
class Pod:
    """What a trainer pod has, in bytes: `device` is the memory of one of its GPUs; `memory` is None without a limit."""

    device: int
    shared_memory: int
    memory: int | None


class JobPlan:
    """Says, once, whether the bins of a job's trainer fit without recomputation; see `fits`.

    `trainer` and `rollout` name the resources that nodes of trainers and engines offer to Ray; `look` runs in each trainer pod.
    """

    def __init__(self, spec: RLJobSpec, trainer: str, rollout: str, look: Callable[[], Pod] | None = None) -> None:
        self._spec, self._trainer, self._rollout, self._look = spec, trainer, rollout, look or own_pod
        self._made: asyncio.Task[bool] | None = None

    async def fits(self) -> bool:
        """Returns whether a bin fits if layers aren't recomputed, by what the trainer's pods have; on CPUs True, without a plan.

        False too if that can't be planned. Returns once Ray has the first node of a trainer or an engine and, if that has a GPU, all of the
        trainer's. Raises SpecProblem (DoesNotFit) if something doesn't fit, however the spec's open settings are chosen.
        """
        if self._made is None or (self._made.done() and (self._made.cancelled() or self._made.exception())):
            self._made = asyncio.create_task(self._make())
        return await asyncio.shield(self._made)

    async def _make(self) -> bool:
        nodes = await self._gpu_nodes()
        if not nodes:
            return True
        # A worker that has run torch here must not become a rank.
        look, plan = ray.remote(max_calls=1)(self._look), ray.remote(max_calls=1)(planned)
        try:
            pods = await asyncio.gather(*(look.options(num_gpus=1, **self._beside(node)).remote() for node in nodes))
            fits: bool = await plan.options(num_gpus=0, **self._beside(nodes[0])).remote(self._spec, smallest(pods))
        except Exception as error:
            if (problem := spec_problem_in(error)) is not None:
                raise problem from error
            # Recomputation costs time; a bin that doesn't fit ends the job.
            log.warning("the job's memory can't be planned; layers are recomputed", error=str(error))
            return False
        return fits

    def _beside(self, node: str) -> dict[str, Any]:
        """Returns the options of a task in a pod with this node, or in another trainer pod if that is gone by then."""
        strategy = NodeAffinitySchedulingStrategy(node, soft=True)
        return {"num_cpus": 0, "resources": {self._trainer: 1}, "scheduling_strategy": strategy}

    async def _gpu_nodes(self) -> list[str]:
        """Waits for the nodes that say whether there are GPUs; returns the nodes of the trainer's pods if there are, else nothing."""
        trainer = self._spec.trainer
        while True:
            listed = ray.nodes()
            resources = [node["Resources"] for node in listed if node["Alive"]]
            members = [offer for offer in resources if {self._trainer, self._rollout} & offer.keys()]
            if members and not any(offer.get("GPU") for offer in members):
                return []
            nodes = pod_nodes(listed, trainer.replicas, trainer.devices_per_pod, self._trainer)
            if nodes is not None:
                return nodes if has_gpus(listed, nodes) else []
            await asyncio.sleep(NODES_SECONDS)


def smallest(pods: Collection[Pod]) -> Pod:
    """Returns the least of what the pods have. Pure."""
    limits = [pod.memory for pod in pods if pod.memory is not None]
    return Pod(min(pod.device for pod in pods), min(pod.shared_memory for pod in pods), min(limits) if limits else None)


def own_pod() -> Pod:
    """Looks at the pod that this process is in, whose device it sees."""
    import torch

    shared = os.statvfs(_SHARED_MEMORY)
    limit = _MEMORY_LIMIT.read_text().strip() if _MEMORY_LIMIT.exists() else "max"
    return Pod(
        torch.cuda.get_device_properties(0).total_memory,
        shared.f_blocks * shared.f_frsize,
        None if limit == "max" else int(limit),
    )


def planned(spec: RLJobSpec, pod: Pod, folder: Path | None = None) -> bool:
    """Returns whether a bin fits without recomputation. Raises SpecProblem (DoesNotFit). In a process without a group of ranks.

    Figures are kept in `folder`, by default one of temporary files, where the next start in the same pod finds them.
    """
    from longboat_runtime.model_config import checked_model, language_model
    from longboat_runtime.plan.capacity import Capacity
    from longboat_runtime.plan.fit import Case, judge
    from longboat_runtime.plan.trace import Traces

    model = language_model(checked_model(Path(spec.model.path)))
    memory: Mapping[str, int] = {} if pod.memory is None else {"trainer": pod.memory}
    # Engines check their own devices, which needn't be like the trainer's.
    capacity = Capacity(pod.device, {"trainer": pod.shared_memory}, memory, engine_device=None)
    figures = folder or Path(tempfile.gettempdir()) / "longboat-plan"
    judgement = judge(Case(spec, model, model.get("max_position_embeddings"), capacity), Traces(figures))
    if judgement.problems:
        raise judgement.problems[0].problem()
    return not judgement.recomputed
