"""A whole pod: what all roles share, what the role adds, the runtime template on top, the job's marks last. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from longboat_crds.base import Role
from longboat_crds.job import RLJobSpec
from longboat_crds.quantities import in_bytes
from longboat_crds.runtime import RLRuntimeSpec, RoleTemplate, UserIds
from longboat_crds.shared_memory import default_shared_memory
from longboat_operator.model import ANNOTATION_RAY_TOKEN, ANNOTATION_REVISION, Object
from longboat_operator.pods import container as parts
from longboat_operator.pods.driver import RAY_HEAD
from longboat_operator.pods.merge import TemplateInvalid, merge
from longboat_operator.pods.names import JobRef, Place
from longboat_operator.pods.roles import ROLES
from longboat_operator.pods.volumes import ray_volumes
from longboat_operator.pods.workers import ENVIRONMENT, GRADERS

CLAIM_USERS = tuple(role for role, traits in ROLES.items() if traits.mounts_checkpoints)

# Users of containers whose user isn't their pod's.
_USERS = {RAY_HEAD: parts.HEAD_USER, GRADERS: parts.GRADER_USER, ENVIRONMENT: parts.GRADER_USER}

TERMINATION_GRACE_SECONDS = 30
# Cluster Autoscaler and Karpenter remove underused nodes together with their pods, unless a pod has these annotations.
KEEP_NODE = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
# Kubernetes' own default is 300 s, in which the other pods of the job would hold their devices idle.
LOST_NODE_TOLERATION_SECONDS = 60


def build_pod(
    job: JobRef,
    spec: RLJobSpec,
    runtime: RLRuntimeSpec,
    revision: str,
    role: Role,
    place: Place,
    attempt: int,
    *,
    token: str,
    one_node: bool,
    graders_cpu: str | None = None,
) -> Object:
    """Builds the pod of one place of a role, from the template that `revision` stores.

    Order: common parts, the role's parts, `runtime.common`, `runtime.roles.ROLE`, the entry of `runtime.rewardTemplates` or
    `runtime.environmentTemplates` that the pod's pool names; then identity, which no template can change. `token` is the Secret with Ray's
    token. With `one_node` the pods that mount the checkpoint claim stay together (a ReadWriteOnce claim). `graders_cpu` takes the place of
    what the template says of the graders' CPUs.

    Raises:
        TemplateInvalid: the template doesn't have the form of a pod template, or removes all containers.
    """
    pod = _merged(job, spec, runtime, role, token, place.pool)
    body = pod["spec"] | {"restartPolicy": "Always"}
    for kind in ("initContainers", "containers"):
        if kind in body:
            grace = body.get("terminationGracePeriodSeconds", TERMINATION_GRACE_SECONDS)
            body[kind] = [_with_grace({"image": runtime.image} | c, role, grace) for c in body[kind]]
    if graders_cpu:
        body["containers"] = [_with_cpu(c, graders_cpu) if c["name"] == GRADERS else c for c in body["containers"]]
    body["tolerations"] = _with_node_tolerations(body.get("tolerations") or [])
    if one_node and role in CLAIM_USERS:
        chooser = _chooser(job, spec, runtime)
        with_whom = CLAIM_USERS if role is chooser else (chooser,)
        body["affinity"] = _with_claim_affinity(job, body.get("affinity", {}), with_whom)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(job, pod.get("metadata", {}), revision, role, place, attempt, token),
        "spec": body,
    }


def _merged(
    job: JobRef, spec: RLJobSpec, runtime: RLRuntimeSpec, role: Role, token: str, pool: str = ""
) -> dict[str, Any]:
    made = merge(_common(token, default_shared_memory(role, spec)), ROLES[role].pod_spec(job, spec, runtime, pool))
    if runtime.user_ids is UserIds.PLATFORM:
        made = _with_platform_ids(made)
    pod: dict[str, Any] = {"metadata": {"labels": {}, "annotations": {}}, "spec": made}
    for place, template in templates_of(runtime, role, ROLES[role].template_of(spec, pool)):
        if "serviceAccount" in _body(template):
            raise TemplateInvalid(f"{place}.spec.serviceAccount: is deprecated in Kubernetes; use serviceAccountName")
        pod = merge(pod, template, place)
    if not pod["spec"].get("containers"):
        raise TemplateInvalid(
            f"spec.containers: null removes all containers of role {role}; leave it out in common.template, roles.{role}.template and "
            "the templates of pools"
        )
    return pod


def templates_of(runtime: RLRuntimeSpec, role: Role, named: str | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the path in the runtime template's spec, and the content, of each pod template of a role, in the order of merging.

    `named` is the entry of the role's templates of pools that the pod's pool names.
    """
    yield "common.template", _for_role(runtime.common.template, role)
    own: RoleTemplate | None = getattr(runtime.roles, role)
    yield f"roles.{role}.template", own.template if own else {}
    if pools := ROLES[role].pools:
        for place, entry in enumerate(pools.templates(runtime)):
            if entry.name == named:
                yield f"{pools.templates_field}[{place}].template", entry.template


def on_host_network(runtime: RLRuntimeSpec, role: Role, named: str | None) -> str | None:
    """Returns the path of the field that puts a role's pods on the network of their node; None if none does."""
    path = None
    for place, template in templates_of(runtime, role, named):
        if "hostNetwork" in _body(template):
            path = f"{place}.spec.hostNetwork" if _body(template)["hostNetwork"] else None
    return path


def driver_account_name(job: JobRef, runtime: RLRuntimeSpec) -> str:
    """Returns the name of the driver pods' ServiceAccount: the job's own, unless a template names another."""
    name: Any = job.driver_account
    for _, template in templates_of(runtime, Role.DRIVER, None):
        name = _body(template).get("serviceAccountName", name)
    return str(name or "default")  # The API server's choice if a template says null.


def shared_users(runtime: RLRuntimeSpec, role: Role, named: str | None) -> tuple[str, ...]:
    """Names the role's own containers, if two of them run as the same user according to the templates; empty if none do.

    Containers without a user run as their image's or the platform's, which counts as the same one. Malformed templates are ignored.
    """
    fixed = runtime.user_ids is not UserIds.PLATFORM
    pod: Any = {"runAsUser": parts.USER} if fixed else {}
    users: dict[str, Any] = dict.fromkeys(ROLES[role].containers)
    if fixed:
        users |= {name: user for name, user in _USERS.items() if name in users}
    for _, template in templates_of(runtime, role, named):
        body = _body(template)
        pod = pod | (body.get("securityContext") or {})
        for container in [*(body.get("initContainers") or ()), *(body.get("containers") or ())]:
            context = (container.get("securityContext") or {}) if isinstance(container, Mapping) else {}
            if "runAsUser" in context and container.get("name") in users:
                users[container["name"]] = context["runAsUser"]
    resolved = {name: pod.get("runAsUser") if user is None else user for name, user in users.items()}
    return tuple(resolved) if len(resolved) > len(set(resolved.values())) else ()


def memory_limit(runtime: RLRuntimeSpec, role: Role, named: str | None, container: str) -> int | None:
    """Returns the bytes that the templates allow this container of a role's pods; None if they set no readable limit."""
    merged: dict[str, Any] = {}
    try:
        for _, template in templates_of(runtime, role, named):
            for entry in _body(template).get("containers") or ():
                if entry["name"] == container:
                    merged = merge(merged, entry)
        return in_bytes(str(merged["resources"]["limits"]["memory"]))
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
        return None  # making the pods reports what is wrong with it


def _common(token: str, shared_memory: str) -> dict[str, Any]:
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": TERMINATION_GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": parts.USER,
            "runAsGroup": parts.USER,
            "fsGroup": parts.USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": ray_volumes(token, shared_memory),
    }


def _body(template: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the pod spec in a template; an empty one if there is none or it isn't an object, which merging reports."""
    body = template.get("spec")
    return body if isinstance(body, Mapping) else {}


def _with_platform_ids(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the pod's spec without users and groups, for a platform that sets them.

    Sets USER, since libraries ask for the user's name, and the image has none for a user that it doesn't know.
    """
    result = {**body, "securityContext": _without_ids(body["securityContext"])}
    for kind in ("initContainers", "containers"):
        if kind in body:
            result[kind] = [
                {
                    **container,
                    "securityContext": _without_ids(container["securityContext"]),
                    "env": [*container["env"], {"name": "USER", "value": "longboat"}],
                }
                for container in body[kind]
            ]
    return result


def _without_ids(context: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in context.items() if key not in ("runAsUser", "runAsGroup", "fsGroup")}


def _with_grace(container: dict[str, Any], role: Role, seconds: Any) -> dict[str, Any]:
    """Tells an agent how long its drain may take: nothing inside a pod says so, and the template has the last word."""
    args = container.get("args") or []
    if container.get("name") not in ROLES[role].containers or args[:1] != ["agent"]:
        return container
    return container | {"args": [*args, "--grace-seconds", str(seconds)]}


def _with_cpu(container: dict[str, Any], cpu: str) -> dict[str, Any]:
    """Returns the container with this CPU request and limit, which change without a restart; its memory stays."""
    resources = dict(container.get("resources") or {})
    for kind in ("requests", "limits"):
        resources[kind] = {**(resources.get(kind) or {}), "cpu": cpu}
    policies = [policy for policy in container.get("resizePolicy") or () if policy.get("resourceName") != "cpu"]
    policies.append({"resourceName": "cpu", "restartPolicy": "NotRequired"})
    return container | {"resources": resources, "resizePolicy": policies}


def _for_role(template: Mapping[str, Any], role: Role) -> Mapping[str, Any]:
    """Returns the common template without its entries for other roles' containers, which would appear here incomplete."""
    body = template.get("spec")
    if not isinstance(body, Mapping):
        return template
    others = {name for r, traits in ROLES.items() if r is not role for name in traits.containers}
    filtered = dict(body)
    for kind in ("initContainers", "containers"):
        if isinstance(filtered.get(kind), list):
            filtered[kind] = [c for c in filtered[kind] if not (isinstance(c, Mapping) and c.get("name") in others)]
    return dict(template) | {"spec": filtered}


def _with_node_tolerations(tolerations: list[Any]) -> list[Any]:
    """Adds limited tolerations of nodes that are gone, for each key that the template doesn't tolerate; one without a key is for all."""
    keys = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    # With another effect a toleration keeps no pod on such a node, and Kubernetes would add its own (DefaultTolerationSeconds).
    lasting = [t for t in tolerations if isinstance(t, Mapping) and t.get("effect") in (None, "", "NoExecute")]
    tolerated = {t.get("key") or "" for t in lasting}
    own = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_NODE_TOLERATION_SECONDS}
        for key in keys
        if not tolerated & {key, ""}
    ]
    return [*tolerations, *own]


def _chooser(job: JobRef, spec: RLJobSpec, runtime: RLRuntimeSpec) -> Role:
    """Decides which of the claim's users chooses the node that all of them share.

    Rule: the trainer, since fewer nodes have what it needs, unless the driver alone asks for a device.
    """
    asks = {role: _asks_for_device(_merged(job, spec, runtime, role, token="")["spec"]) for role in CLAIM_USERS}
    return Role.DRIVER if asks[Role.DRIVER] and not asks[Role.TRAINER] else Role.TRAINER


def _asks_for_device(body: Mapping[str, Any]) -> bool:
    """Whether a container asks for an extended resource (its name has a domain, as nvidia.com/gpu) or a claimed one."""
    for container in (*body.get("initContainers", ()), *body["containers"]):
        resources = container.get("resources") or {}
        named = {*(resources.get("limits") or {}), *(resources.get("requests") or {})}
        if resources.get("claims") or any("/" in name for name in named):
            return True
    return False


def _with_claim_affinity(job: JobRef, affinity: Mapping[str, Any], with_whom: Sequence[Role]) -> dict[str, Any]:
    """Returns the affinity that puts the pod on the node of other users of the claim, in addition to what the template asks for.

    The role that decides the node follows any of them, itself included: its first pod is free to choose, since a pod may
    match its own term (Kubernetes, inter-pod affinity). Any other role follows that one alone, and so waits for it.
    """
    field = "requiredDuringSchedulingIgnoredDuringExecution"
    pods = affinity.get("podAffinity", {})
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": job.selector(*with_whom)}
    return merge(affinity, {"podAffinity": {field: [*pods.get(field, []), term]}}, "affinity")


def _metadata(
    job: JobRef, metadata: Mapping[str, Any], revision: str, role: Role, place: Place, attempt: int, token: str
) -> dict[str, Any]:
    labels = dict(metadata.get("labels", {})) | job.labels(role) | job.pod_labels(role, place, attempt)
    annotations = {
        "kubectl.kubernetes.io/default-container": ROLES[role].containers[0],
        **dict(job.common_annotations),
        **(KEEP_NODE if ROLES[role].every_pod_needed else {}),
        **metadata.get("annotations", {}),
        ANNOTATION_REVISION: revision,
        ANNOTATION_RAY_TOKEN: token,
    }
    return job.metadata(job.pod(role, place, attempt), labels) | {"annotations": annotations}
