"""Plans a job that starts on GPUs, once, before any pod loads the model."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import structlog
from ray.exceptions import RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from longboat_crds.job import RLJobSpec
from longboat_crds.problems import SpecProblem, spec_problem_in
from longboat_graders.cgroup import memory_limit
from longboat_runtime.object_store import SHARED_MEMORY
from longboat_runtime.ray_nodes import ROLLOUT_RESOURCE, TRAINER_RESOURCE, Node, have_gpus, offering
from longboat_runtime.trainer.placement import placed

log = structlog.get_logger()

# The folder of the checkpoint directory that keeps figures for later starts.
FOLDER = "plan"
# Seconds after which a plan is given up: most take less than a minute, a search for a change that fits may take several.
PLAN_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Pod:
    """The capacity of a trainer pod, in bytes: `device` is the memory of one of its GPUs; `memory` is None without a limit."""

    device: int
    shared_memory: int
    memory: int | None


@dataclass(frozen=True, slots=True)
class Past:
    """The job's checkpoint directory at a start: its path `root`, and the bytes of its `claim`, None in a local run.

    `trained` says whether the job has a checkpoint.
    """

    root: Path
    claim: int | None
    trained: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a plan: whether a bin `fits` without recomputation, a `report`, `warnings`, and the `problem` that ends the job."""

    fits: bool
    report: str
    warnings: list[str]
    problem: SpecProblem | None


class JobPlan:
    """Plans a job at most once; see `fits`. `look` runs in each trainer pod."""

    def __init__(self, spec: RLJobSpec, past: Past, look: Callable[[], Pod] | None = None) -> None:
        self._spec, self._past, self._look = spec, past, look or own_pod
        self._made: asyncio.Task[bool] | None = None

    async def engines_may_start(self) -> None:
        """Waits for the first node of engines and, if it has a GPU, for the plan. Raises SpecProblem as `fits` does."""
        if have_gpus(await offering(ROLLOUT_RESOURCE, 1)):
            await self.fits()

    async def fits(self) -> bool:
        """Returns whether a bin fits into the trainer's pods without recomputation. On CPUs True, without a plan.

        Also returns False if planning fails or takes too long; unless the plan itself failed, the next call plans again. Waits for the first trainer node
        in Ray and, if it has a GPU, for all of them. Raises SpecProblem (DoesNotFit) if something certainly doesn't fit. Only logs
        uncertain problems, and all problems of a job that has a checkpoint, since that has run.
        """
        if self._made is None or (self._made.done() and (self._made.cancelled() or self._made.exception())):
            self._made = asyncio.create_task(self._make())
        return await asyncio.shield(self._made)

    async def _make(self) -> bool:
        if not have_gpus(await offering(TRAINER_RESOURCE, 1)):
            return True
        nodes = await placed(self._spec.trainer)
        # A worker process that has run one of these must not become a rank.
        look, plan = ray.remote(max_calls=1)(self._look), ray.remote(max_calls=1)(planned)
        try:
            pods = await asyncio.gather(*(look.options(num_gpus=1, **self._beside(node)).remote() for node in nodes))
            first = plan.options(num_gpus=0, **self._beside(nodes[0]))
            planning = first.remote(self._spec, smallest(pods), self._past)
            try:
                outcome: Outcome = await asyncio.wait_for(planning, PLAN_SECONDS)
            except TimeoutError:
                ray.cancel(planning, force=True)
                raise
        except Exception as error:
            # A job with a checkpoint has trained; what its ranks find wrong they say themselves.
            if (problem := spec_problem_in(error)) is not None and not self._past.trained:
                raise problem from error
            if not isinstance(error, RayTaskError):
                self._made = None
            # Recomputation costs time; a bin that doesn't fit ends the job.
            log.warning(
                "the job's memory can't be planned; layers are recomputed", error=str(error) or type(error).__name__
            )
            return False
        log.info("the plan of the job's memory\n%s", outcome.report)
        for warning in outcome.warnings:
            log.warning("the job may not fit", cause=warning)
        if outcome.problem is not None:
            raise outcome.problem
        return outcome.fits

    def _beside(self, node: Node) -> dict[str, Any]:
        """Returns the options of a task in a pod with this node or, while that has no room, in another trainer pod."""
        strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=True, _spill_on_unavailable=True)
        return {"num_cpus": 0, "resources": {TRAINER_RESOURCE: 1}, "scheduling_strategy": strategy}


def smallest(pods: Collection[Pod]) -> Pod:
    """Returns the least capacity among the pods. Pure."""
    memory = min((pod.memory for pod in pods if pod.memory is not None), default=None)
    return Pod(min(pod.device for pod in pods), min(pod.shared_memory for pod in pods), memory)


def own_pod() -> Pod:
    """Returns the capacity of this process's pod, whose device it sees."""
    import torch

    device = torch.cuda.get_device_properties(0).total_memory
    return Pod(device, shutil.disk_usage(SHARED_MEMORY).total, memory_limit())


def planned(spec: RLJobSpec, pod: Pod, past: Past) -> Outcome:
    """Plans a job whose trainer pods are like `pod`. The process must not be in a group of ranks.

    Stores figures in the checkpoint directory. Raises SpecProblem if the model can't be trained as the spec says.
    """
    from longboat_runtime.plan import report
    from longboat_runtime.plan.capacity import Capacity
    from longboat_runtime.plan.fit import Case, judge, refusal
    from longboat_runtime.plan.trace import Traces, model_values

    # Engines check their own devices, which needn't be like the trainer's. In a local run all roles share one host, without a template;
    # what doesn't fit into its shared memory goes through the disk.
    capacity = Capacity(pod.device)
    if past.claim is not None:
        memory: Mapping[str, int] = {} if pod.memory is None else {"trainer": pod.memory}
        capacity = Capacity(pod.device, {"trainer": pod.shared_memory}, memory, claim=past.claim)
    case = Case(spec, model_values(Path(spec.model.path)), capacity, started=past.claim is not None)
    judgement = judge(case, Traces(past.root / FOLDER))
    uncertain, problems = judgement.warnings, judgement.problems
    if past.trained:
        uncertain, problems = [*problems, *uncertain], []
    return Outcome(
        not judgement.recomputed,
        "\n".join(report.lines(case, judgement)),
        [f"{each.field}: {each.message}" for each in uncertain],
        refusal(problems) if problems else None,
    )
