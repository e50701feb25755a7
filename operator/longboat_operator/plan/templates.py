"""Decides which runtime template a job uses, and how it is stored. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from longboat_crds.base import Role
from longboat_crds.gpus import gpu_problem
from longboat_crds.job import RuntimeKind
from longboat_crds.pools import PoolSpec
from longboat_crds.quantities import in_bytes
from longboat_crds.reasons import ConditionType, Reason
from longboat_crds.runtime import RLRuntimeSpec
from longboat_crds.tolerance import read_known
from longboat_operator.model import Object
from longboat_operator.pods.container import RAY_PORT
from longboat_operator.pods.names import JobRef
from longboat_operator.pods.pod import driver_account_name, memory_limit, on_host_network
from longboat_operator.pods.roles import ROLES, PoolTraits
from longboat_operator.reading.conditions import Finding
from longboat_operator.reading.view import JobView, first_problem

# How many names of templates a message lists.
_LISTED = 10


@dataclass(frozen=True, slots=True)
class Template:
    """The template in force. `is_new` while its ControllerRevision is still to be created.

    `unread` is the first problem that this version has in reading the ControllerRevision's data, if any.
    """

    number: int
    runtime: RLRuntimeSpec
    is_new: bool
    unread: str | None = None


def template_of(view: JobView) -> Template | Finding:
    """Returns the template from which pods are now created, or why there is none.

    Rules:
    * it is the newest ControllerRevision of the job, whatever happened to the live template since. The live one is taken by a job that has
      none yet, and by one that resumes with `runtimeRef.renewOnResume`, if it differs from the stored one;
    * it has to have the entries of `rewardTemplates` and `environmentTemplates` that the job's pools name, and room for what runs there.
      A new one also has to be one that jobs can run with (`_unfit`).
    """
    template = _in_force(view)
    return (
        template
        if isinstance(template, Finding)
        else _lacking(view, template) or _unfit(view, template) or _too_small(view, template) or template
    )


def _in_force(view: JobView) -> Template | Finding:
    stored = _stored_template(view)
    if isinstance(stored, Finding):
        return stored
    if stored and not (view.suspended and view.spec.runtime_ref.renew_on_resume):
        return stored
    live = _live(view)
    if isinstance(live, Finding):
        return live
    if stored and stored.runtime == live:
        return stored
    return Template(stored.number + 1 if stored else 1, live, is_new=True)


def runtime_revision(job: JobRef, number: int, runtime: RLRuntimeSpec) -> Object:
    """Returns the ControllerRevision that stores the template: its `data`, which Kubernetes keeps immutable, is the template's spec."""
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": job.metadata(job.revision(number)),
        "data": runtime.to_json(),
        "revision": number,
    }


def _stored_template(view: JobView) -> Template | Finding | None:
    revisions: list[Object] = list(view.observed.children.get("ControllerRevision", {}).values())
    if not revisions:
        return None
    newest = max(revisions, key=lambda r: int(r["revision"]))
    unread = None
    try:
        runtime = _runtime(to_json(newest["data"]))
    except ValidationError as error:  # another version wrote it
        unread = first_problem("data", error)
        try:
            runtime = read_known(RLRuntimeSpec, newest["data"])
        except ValidationError:
            message = f"ControllerRevision {newest['metadata']['name']}: {unread}"
            return _unresolved(Reason.POD_TEMPLATE_INVALID, message)
    return Template(int(newest["revision"]), runtime, is_new=False, unread=unread)


@lru_cache(maxsize=4096)
def _runtime(text: bytes) -> RLRuntimeSpec:
    """Reads a template from its JSON; cached, since a revision's template never changes."""
    return RLRuntimeSpec.model_validate(from_json(text))


def _live(view: JobView) -> RLRuntimeSpec | Finding:
    reference = view.spec.runtime_ref
    name = f"{reference.kind} {reference.name}"
    if reference.kind is RuntimeKind.CLUSTER_RL_RUNTIME and not view.observed.sees_cluster_runtimes:
        message = f"{name} can't be read: this operator is installed for single namespaces; use an RLRuntime"
        return _unresolved(Reason.CLUSTER_RUNTIME_NOT_SERVED, message)
    if view.observed.runtime is None:
        cure = _nearest(view.observed.runtime_names, str(reference.kind), reference.name)
        return _unresolved(Reason.RUNTIME_NOT_FOUND, f"{name} does not exist; {cure}")
    try:
        return RLRuntimeSpec.model_validate(view.observed.runtime["spec"])
    except ValidationError as error:
        return _unresolved(Reason.POD_TEMPLATE_INVALID, f"{name}: {first_problem('spec', error)}")


def _nearest(names: Mapping[str, tuple[str, ...]], kind: str, name: str) -> str:
    """Suggests another name, or the other kind, for a template that doesn't exist."""
    for other, its_names in names.items():
        if other != kind and name in its_names:
            return f"there is {other} {name}: set spec.runtimeRef.kind"
    same_kind = names.get(kind, ())
    if close := get_close_matches(name, same_kind, n=3):
        return f"did you mean {' or '.join(close)}?"
    listed = ", ".join([*same_kind[:_LISTED], "..."] if len(same_kind) > _LISTED else same_kind)
    return f"there are {listed}" if listed else f"there is no {kind} yet"


def _unfit(view: JobView, template: Template) -> Finding | None:
    """Reports a field of a new template that no job can run with, or that would be ignored; None if there is none.

    A job that has started keeps its template and runs on.
    """
    if not template.is_new:
        return None
    runtime, reference = template.runtime, view.spec.runtime_ref
    name = f"{reference.kind} {reference.name}"
    for role, traits in ROLES.items():
        templates = [pool.template for pool in traits.pool_specs(view.spec)]
        for named in templates if traits.pools else [None]:
            if place := on_host_network(runtime, role, named):
                message = (
                    f"{name}: spec.{place}: pods of a job listen on fixed ports (such as {RAY_PORT}), which a node has only once, and "
                    "NetworkPolicies, which isolate graded code, don't apply to the host network; remove it, and for RDMA give pods a "
                    "second network (such as Multus with SR-IOV)"
                )
                return _unresolved(Reason.POD_TEMPLATE_INVALID, message)
    account = driver_account_name(view.job, runtime)
    if runtime.driver_service_account and account != view.job.driver_account:
        message = (
            f"{name}: spec.driverServiceAccount: configures the account that the operator creates, but the template's driver pods have "
            f"serviceAccountName {account}: leave one of the two out"
        )
        return _unresolved(Reason.POD_TEMPLATE_INVALID, message)
    if (problem := gpu_problem(view.spec.trainer, runtime, name)) is not None:
        return _unresolved(Reason.POD_TEMPLATE_INVALID, problem)
    return None


def _lacking(view: JobView, template: Template) -> Finding | None:
    """Reports the first template that a pool of the job names and the runtime template lacks; None if it lacks none."""
    reference = view.spec.runtime_ref
    for _, pools, place, pool in _pools(view):
        names = [entry.name for entry in pools.templates(template.runtime)]
        if pool.template is None or pool.template in names:
            continue
        close = get_close_matches(pool.template, names, n=1)
        cure = f"did you mean {close[0]}?" if close else f"it has {', '.join(names) or 'none'}"
        source = "" if template.is_new else f", as kept in ControllerRevision {view.job.revision(template.number)},"
        message = (
            f"spec.{pools.field}[{place}].template: {reference.kind} {reference.name}{source} has no entry {pool.template!r} in "
            f"spec.{pools.templates_field}; {cure}"
        )
        return _unresolved(pools.lacks_template, message)
    return None


def _too_small(view: JobView, template: Template) -> Finding | None:
    """Reports the first pool whose pods have less memory for the user's code than what runs there at once may hold; None if there is none.

    A container without a limit has room.
    """
    reference = view.spec.runtime_ref
    for role, pools, place, pool in _pools(view):
        memories = pools.memories(view.spec, pool.name)
        if not memories:
            continue
        path, memory = max(memories.items(), key=lambda item: in_bytes(item[1]))
        limit = memory_limit(template.runtime, role, pool.template, pools.container)
        needed = pool.at_once * in_bytes(memory)
        if limit is None or needed <= limit:
            continue
        fit = limit // max(in_bytes(memory), 1)
        lower = f"lower it to {fit}, " if fit else ""
        message = (
            f"spec.{pools.field}[{place}].{pools.at_once_field}: {pool.at_once} {pools.runs} at once may hold {memory} each ({path}), "
            f"{needed >> 20}Mi in all, but {reference.kind} {reference.name} allows the pool's container `{pools.container}` "
            f"{limit >> 20}Mi; {lower}lower {path.rpartition('].')[2]}, or choose a template with more memory"
        )
        return _unresolved(pools.lacks_memory, message)
    return None


def _pools(view: JobView) -> Iterator[tuple[Role, PoolTraits, int, PoolSpec]]:
    """Yields each pool of the job, with its role, the traits of that role's pools, and its place in the spec's list."""
    for role, traits in ROLES.items():
        if traits.pools:
            for place, pool in enumerate(traits.pools.specs(view.spec)):
                yield role, traits.pools, place, pool


def _unresolved(reason: Reason, message: str) -> Finding:
    return Finding(ConditionType.RUNTIME_RESOLVED, False, reason, message)
