"""Decides what doesn't fit, and the cheapest change that makes it fit. Pure, but for the tracer that it calls."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pydantic import ValidationError

from longboat_crds.fixed import FIXED
from longboat_crds.job import RLJobSpec
from longboat_crds.problems import SpecProblem
from longboat_crds.quantities import in_bytes
from longboat_crds.reasons import Reason
from longboat_crds.rollout import MAX_DEVICES_PER_POD
from longboat_crds.trainer import MAX_RANKS
from longboat_runtime.model_config import longest_sequence
from longboat_runtime.plan import needs
from longboat_runtime.plan.capacity import CONTAINERS, Capacity
from longboat_runtime.plan.figures import Figures
from longboat_runtime.plan.needs import GIB, MIB, Need, Resource
from longboat_runtime.rollout.engine import RESERVE, TORCH_NAMES, kv_token_bytes, parallelism_problem

# How often the pods of a job are doubled at most: a trace of thousands of ranks takes long.
DOUBLINGS = 6
# One part in MARGIN of a rank's peak stays free where the plan chooses whether layers are recomputed: compiled layers may take so much
# more than it says. Recomputation costs a third of a step; a bin that doesn't fit ends the job.
MARGIN = 20
# Prefixes of fields of the job and of the runtime template.
SPEC, ROLES = "spec.", "runtime spec.roles."
CLAIM_SIZE, KEEP = "spec.checkpoint.volume.size", "spec.checkpoint.keep"

Tracer = Callable[[RLJobSpec], Figures]
# New values of fields, by their paths in the job (`spec.…`) or in the runtime template (`runtime spec.roles.…`).
Change = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DoesNotFit:
    """Reports a `need` that exceeds what `field` gives, and the cheapest `change` that fits; the change is empty if none does.

    Some fields can't be changed once a job has `started`.
    """

    need: Need
    field: str
    change: Change
    started: bool = False

    @property
    def message(self) -> str:
        """Writes the problem as a sentence."""
        need = self.need
        needed, available = amount(need, need.needed), amount(need, need.available or 0)
        match need.resource:
            case Resource.BIN:
                what = f"a bin has to hold {needed}, the longest sample, and holds {need.available}"
            case Resource.CLAIM:
                what = f"checkpoints and exports need {needed} of the claim, which has {available}"
            case Resource.DEVICE:
                what = f"a trainer rank needs {needed} of its device, which has {available}"
            case _:
                what = f"a {need.role} pod needs {needed} of {need.resource}, and has {available}"
        if not need.exceeds:
            what = f"{what}, but {amount(need, need.assumed)} of what it needs are assumed"
        if not self.change:
            cure = (
                "a larger claim" if need.resource is Resource.CLAIM else "devices with more memory, or a smaller model"
            )
            return f"{what}; no setting makes it fit: use {cure}"
        changes = " and ".join(f"{path}: {_shown(value)}" for path, value in self.change.items())
        fixed = [path for path in self.change if self.started and _is_fixed(path)]
        another = f", in another job: {' and '.join(fixed)} can't be changed once a job has started" if fixed else ""
        return f"{what}; the cheapest change that fits: {changes}{another}"


def refusal(problems: Sequence[DoesNotFit]) -> SpecProblem:
    """Returns the error that ends a job with these `problems`, of which there is at least one. It has the first field and all messages."""
    first, *others = problems
    message = "; also ".join([first.message, *(f"{problem.field}: {problem.message}" for problem in others)])
    return SpecProblem(Reason.DOES_NOT_FIT, first.field, message)


@dataclass(frozen=True, slots=True)
class Case:
    """A job to be planned: its `spec`, its `model` (config.json by standard names), and the `capacity` of its pods.

    Once the job has `started`, some of its fields can't be changed, and its claim can't grow.
    """

    spec: RLJobSpec
    model: Mapping[str, Any]
    capacity: Capacity
    started: bool = False

    @property
    def longest(self) -> int:
        """Returns the most tokens that a sequence may have. Raises SpecProblem as `model_config.longest_sequence` does."""
        return longest_sequence(self.model, self.spec.model.max_length, self.spec.model.path)

    def changed(self, change: Change) -> Case | None:
        """Returns the case with the fields of `change` set, or None if the API would refuse them."""
        content = self.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
        shared, memory, claim = dict(self.capacity.shared_memory), dict(self.capacity.memory), self.capacity.claim
        for path, value in change.items():
            if path.startswith(SPEC):
                *parents, name = path.removeprefix(SPEC).split(".")
                place = content
                for parent in parents:
                    place = place.setdefault(parent, {})
                place[name] = value
                if path == CLAIM_SIZE:
                    claim = in_bytes(value)
            else:
                role = path.removeprefix(ROLES).split(".")[0]
                (memory if path.endswith("memory") else shared)[role] = in_bytes(value)
        try:
            spec = RLJobSpec.model_validate(content)
        except ValidationError:
            return None
        return replace(
            self, spec=spec, capacity=replace(self.capacity, shared_memory=shared, memory=memory, claim=claim)
        )


# Decides whether a need is a problem.
Judge = Callable[[Need], bool]
# Judges one limit; returns None if there is no problem.
Remedy = Callable[[Case, Tracer, Judge], DoesNotFit | None]


@dataclass(frozen=True, slots=True)
class Judgement:
    """The figures and needs of a case, and what doesn't fit.

    `problems` are certain; `warnings` depend on assumed numbers. `recomputed` says that the plan, not the spec, chose recomputation.
    """

    figures: Figures
    needs: list[Need]
    problems: list[DoesNotFit]
    warnings: list[DoesNotFit]
    recomputed: bool


def judge(case: Case, tracer: Tracer) -> Judgement:
    """Judges a case by traces of its trainer.

    Each limit is judged with all earlier changes made, so that the changes fit together. Warnings are judged after all problems: a
    change for an assumed number must not cause a problem.
    """
    first, recomputed = resolved(case, tracer)
    figures = tracer(first.spec)
    all_needs = needs.needs(first.spec, case.model, figures, case.longest, case.capacity)
    problems, changed = _exceeded(case, tracer, lambda need: need.exceeds)
    hopeless = {(problem.need.resource, problem.need.role) for problem in problems if not problem.change}
    warnings, _ = _exceeded(changed, tracer, lambda need: not need.fits and (need.resource, need.role) not in hopeless)
    return Judgement(figures, all_needs, problems, warnings, recomputed)


def _exceeded(case: Case, tracer: Tracer, is_problem: Judge) -> tuple[list[DoesNotFit], Case]:
    """Returns the problems of a case, and the case with all their changes made."""
    problems: list[DoesNotFit] = []
    # A change affects only later limits: shorter sequences the bins' prompts, an engine's further devices its pod's memory.
    remedies: list[Remedy] = [
        _bin,
        _kv_cache,
        _device,
        *(partial(_pod, needs.shared_memory_need, role) for role in CONTAINERS),
        *(partial(_pod, needs.host_need, role) for role in ("rollout", "trainer")),
        _claim,
    ]
    for remedy in remedies:
        problem = remedy(case, tracer, is_problem)
        if problem is not None:
            problems.append(replace(problem, started=case.started))
            case = case.changed(problem.change) or case
    return problems, case


def resolved(case: Case, tracer: Tracer) -> tuple[Case, bool]:
    """Sets what the spec leaves open; returns also whether layers are recomputed for that reason: where a bin doesn't fit otherwise."""
    trainer = case.spec.trainer
    if trainer.gradient_checkpointing is not None:
        return case, False
    plain, recomputing = (
        case.spec.model_copy(update={"trainer": trainer.model_copy(update={"gradient_checkpointing": value})})
        for value in (False, True)
    )
    fits = not trainer.offload_activations and _fits_easily(plain, tracer(plain), case.capacity)
    recomputed = trainer.recomputes(fits=fits)
    return replace(case, spec=recomputing if recomputed else plain), recomputed


def _fits_easily(spec: RLJobSpec, figures: Figures, capacity: Capacity) -> bool:
    needed = needs.device_need(spec, figures, capacity).needed + figures.peak // MARGIN
    return capacity.device is None or needed <= capacity.device


def amount(need: Need, value: int) -> str:
    """Writes a quantity of what is needed, with its unit."""
    if need.resource is Resource.BIN:
        return f"{value} tokens"
    return f"{value / GIB:.1f} GiB" if value >= GIB else f"{value / MIB:.1f} MiB"


def _figures(case: Case, tracer: Tracer) -> Figures:
    return tracer(resolved(case, tracer)[0].spec)


def _is_fixed(path: str) -> bool:
    name = path.removeprefix(SPEC)
    return any(name == fixed or name.startswith(f"{fixed}.") for fixed in FIXED)


def _bin(case: Case, tracer: Tracer, is_problem: Judge) -> DoesNotFit | None:
    need = needs.bin_need(case.spec)
    field = "spec.trainer.maxTokensPerBin"
    return DoesNotFit(need, field, {field: need.needed}) if is_problem(need) else None


def _device(case: Case, tracer: Tracer, is_problem: Judge) -> DoesNotFit | None:
    need = needs.device_need(case.spec, _figures(case, tracer), case.capacity)
    if not is_problem(need):
        return None

    def fits(change: Change) -> bool:
        changed = case.changed(change)
        return changed is not None and needs.device_need(changed.spec, _figures(changed, tracer), case.capacity).fits

    for changes in _device_changes(case):
        if changes and fits(changes[-1]):
            # Each change takes less memory than the one before it, so a binary search traces few.
            change = changes[bisect_left(changes, True, key=fits)]
            return DoesNotFit(need, next(iter(change)), change)
    return DoesNotFit(need, "spec.model.path", {})


def _device_changes(case: Case) -> Iterator[list[Change]]:
    """Yields changes of the trainer, the cheapest first, in lists of one kind in which each takes less memory than the one before it.

    Recomputation costs a third of a step, smaller bins some speed, offloading the host's memory, fewer copies of the model more bytes
    between pods, and more pods devices. Each comes with those before it.
    """
    trainer, path = case.spec.trainer, "spec.trainer."
    cheap: dict[str, Any] = {}
    if trainer.gradient_checkpointing is False:
        cheap[f"{path}gradientCheckpointing"] = True
        yield [dict(cheap)]
    sizes: list[dict[str, Any]] = []
    size, least = trainer.max_tokens_per_bin, needs.bin_need(case.spec).needed
    while size > least:
        size = max(size // 2, least)
        sizes.append({f"{path}maxTokensPerBin": size})
    yield [cheap | smaller for smaller in sizes]
    if not trainer.offload_activations:
        cheap[f"{path}offloadActivations"] = True
        yield [dict(cheap)]
        yield [cheap | smaller for smaller in sizes]
    fewer = [count for count in range(trainer.replicate_degree - 1, 0, -1) if trainer.replicas % count == 0]
    larger: list[dict[str, Any]] = [{f"{path}replicateDegree": count} for count in fewer]
    pods = [trainer.replicas * 2**power for power in range(1, DOUBLINGS + 1)]
    one_copy = larger[-1] if larger else {}
    larger += [one_copy | {f"{path}replicas": count} for count in pods if count * trainer.devices_per_pod <= MAX_RANKS]
    yield [cheap | change for change in larger]
    if sizes:
        yield [cheap | sizes[-1] | change for change in larger]


def _kv_cache(case: Case, tracer: Tracer, is_problem: Judge) -> DoesNotFit | None:
    figures = _figures(case, tracer)

    def kv_need(changed: Case) -> Need:
        return needs.kv_need(changed.spec, changed.model, figures, changed.longest, changed.capacity)

    if not is_problem(need := kv_need(case)):
        return None
    for change in _kv_changes(case, figures):
        if (changed := case.changed(change)) and kv_need(changed).fits:
            return DoesNotFit(need, next(iter(change)), change)
    return DoesNotFit(need, "spec.rollout.tensorParallel", {})


def _kv_changes(case: Case, figures: Figures) -> Iterator[Change]:
    """Yields changes of engines, the cheapest first: more memory of its device, more devices for each engine, shorter sequences.

    A KV cache that is too large beside the weights shrinks to the memory that they leave.
    """
    rollout = case.spec.rollout
    room = needs.kv_room(case.spec, case.model, figures, case.capacity) or 0
    token_bytes = partial(kv_token_bytes, case.model, TORCH_NAMES[case.spec.model.dtype])
    most = MAX_DEVICES_PER_POD // rollout.engines_per_pod
    sizes = [rollout.tensor_parallel * 2**power for power in range(MAX_DEVICES_PER_POD.bit_length())]
    for size in sizes:
        if size > most or parallelism_problem(size, case.model) is not None:
            continue
        larger = {"spec.rollout.tensorParallel": size} if size != rollout.tensor_parallel else {}
        if larger:
            yield larger
        if rollout.kv_cache is not None:
            if in_bytes(rollout.kv_cache) > room >= MIB and not larger:
                yield {"spec.rollout.kvCache": f"{room // MIB}Mi"}
            yield {"spec.rollout.kvCache": quantity(token_bytes(size) * case.longest, MIB)} | larger
        if rollout.device_memory is not None:
            weights = needs.engine_weights(figures, case.model, size)
            wanted = math.ceil((token_bytes(size) * case.longest + weights) * RESERVE / (RESERVE - 1)) + RESERVE
            yield {"spec.rollout.deviceMemory": quantity(wanted, MIB)} | larger
    # The API refuses sequences that leave no room for a prompt, or that no bin holds.
    length = min(room // token_bytes(rollout.tensor_parallel), case.spec.trainer.max_tokens_per_bin)
    if 0 < length < case.longest:
        yield {"spec.model.maxLength": length}


def _pod(
    need_by_role: Callable[[RLJobSpec, Figures, str, Capacity], Need],
    role: str,
    case: Case,
    tracer: Tracer,
    is_problem: Judge,
) -> DoesNotFit | None:
    """Judges what the runtime template gives the pods of a role."""
    need = need_by_role(case.spec, _figures(case, tracer), role, case.capacity)
    if not is_problem(need):
        return None
    containers, name = CONTAINERS[role]
    place = (
        "volumes[shm].emptyDir.sizeLimit"
        if need.resource is Resource.SHARED_MEMORY
        else f"{containers}[{name}].resources.limits.memory"
    )
    field = f"{ROLES}{role}.template.spec.{place}"
    return DoesNotFit(need, field, {field: quantity(need.needed, GIB if need.needed >= GIB else MIB)})


def _claim(case: Case, tracer: Tracer, is_problem: Judge) -> DoesNotFit | None:
    """Judges the claim. Enlarges one that the operator has yet to create; for any other, keeps fewer checkpoints if that is enough."""
    figures, checkpoint = _figures(case, tracer), case.spec.checkpoint
    need = needs.claim_need(case.spec, figures, case.capacity)
    if not is_problem(need):
        return None
    if case.started or checkpoint.claim_name:
        surplus = need.needed - (need.available or 0)
        keep = checkpoint.keep - math.ceil(surplus / needs.checkpoint_bytes(case.spec, figures))
        if keep >= 1:
            return DoesNotFit(need, KEEP, {KEEP: keep})
    if checkpoint.claim_name:
        return DoesNotFit(need, "spec.checkpoint.claimName", {})
    return DoesNotFit(need, CLAIM_SIZE, {CLAIM_SIZE: quantity(need.needed, GIB)})


def quantity(nbytes: int, unit: int) -> str:
    """Rounds bytes up to a whole number of a `unit`, GIB or MIB, in the notation of Kubernetes. Pure."""
    return f"{-(-nbytes // unit)}{'Gi' if unit == GIB else 'Mi'}"


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
