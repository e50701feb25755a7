"""RLRuntime and ClusterRLRuntime: the platform team's template of a job's pods."""

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from longboat_crds.base import LIST_TYPE, PRESERVE_UNKNOWN, ApiModel, ObjectName, ReferenceName, list_map
from longboat_crds.metadata import KEY_RULES, Annotations, Labels, key_rules
from longboat_crds.rules import Rule

_METADATA = {"type": "object", "description": "Labels and annotations.", PRESERVE_UNKNOWN: True}
_SPEC = {"type": "object", "description": "A core/v1 PodSpec, which may be partial.", PRESERVE_UNKNOWN: True}


def _is_pod_template(value: dict[str, Any]) -> dict[str, Any]:
    for key in value:
        if key not in ("metadata", "spec"):
            message = f"a pod template has metadata and spec, not {key}: containers, volumes and so on go in spec"
            raise PydanticCustomError("pod_template", "{message}", {"message": message, "field": key})
    return value


# A core/v1 PodTemplateSpec; the contents of its metadata and spec are checked by a dry-run create before a job starts.
PodTemplate = Annotated[
    dict[str, Any],
    AfterValidator(_is_pod_template),
    Field(
        description="A core/v1 PodTemplateSpec: `metadata` (labels, annotations) and `spec`.",
        json_schema_extra={"additionalProperties": False, "properties": {"metadata": _METADATA, "spec": _SPEC}},
    ),
]


class RoleTemplate(ApiModel):
    """A pod template for one role, merged onto what the operator builds.

    Containers are matched by name: `driver` and, of initContainers, `ray-head` in the driver pod, `rollout`, `trainer`, `reward` and
    `graders` in the reward pod, and `episodes` and `environment` in the environment pod. Image, resources, env, volume mounts and security
    settings may be given; other containers are added.
    """

    template: PodTemplate = Field(default_factory=dict)


class RolesTemplate(ApiModel):
    """Templates by role."""

    driver: RoleTemplate = Field(default_factory=RoleTemplate)
    rollout: RoleTemplate = Field(default_factory=RoleTemplate)
    reward: RoleTemplate = Field(default_factory=RoleTemplate)
    trainer: RoleTemplate = Field(default_factory=RoleTemplate)
    # None where no template gives it: ControllerRevisions of runtimes without it stay as they are.
    environment: RoleTemplate | None = None


class PoolTemplate(ApiModel):
    """A pod template for the pools of a job that name it (their field `template`), merged after that of their role.

    Jobs only choose among these: what may run is the platform team's decision.
    """

    name: ObjectName = Field(description="Name by which jobs refer to it.")
    template: PodTemplate = Field(default_factory=dict)


class UserIds(StrEnum):
    """Who chooses the users and groups that containers run as."""

    FIXED = "Fixed"
    PLATFORM = "Platform"


class SecretReference(ApiModel):
    """A Secret of the job's namespace."""

    name: ReferenceName = Field(description="Its name.")


class DriverServiceAccount(ApiModel):
    """The ServiceAccount that the operator creates for the driver of each job (`NAME-driver`)."""

    rules: ClassVar[tuple[Rule, ...]] = key_rules("annotations")

    annotations: Annotations | None = Field(
        default=None, description="Its annotations, such as one that binds it to a cloud identity."
    )
    image_pull_secrets: list[SecretReference] | None = Field(
        default=None,
        max_length=16,
        description="Secrets with which driver pods pull images. Default: those that the namespace's account `default` has when the pod is "
        "created.",
        json_schema_extra=list_map("name"),
    )


class RLRuntimeSpec(ApiModel):
    """Applies to every job that refers to it; a job keeps the version it started with, except by runtimeRef.renewOnResume."""

    rules: ClassVar[tuple[Rule, ...]] = KEY_RULES

    image: str = Field(
        min_length=1, max_length=1024, description="Runtime image of every container that doesn't name its own."
    )
    graders_image: str | None = Field(
        default=None,
        min_length=1,
        max_length=1024,
        description="Image of the `graders` containers of reward pods, in which rewards and programs run, and of the `environment` containers "
        "of environment pods; `longboat` starts it. It needs the extra `graders` and what rewards and environments import. Default: image, "
        "started by command.",
    )
    command: list[Annotated[str, Field(min_length=1, max_length=1024)]] = Field(
        default_factory=lambda: ["longboat"],
        min_length=1,
        max_length=16,
        description="How the image starts the runtime's command line.",
        json_schema_extra={LIST_TYPE: "atomic"},
    )
    labels: Labels | None = Field(
        default=None, description="Labels of all objects of its jobs; they take precedence over spec.labels of the job."
    )
    annotations: Annotations | None = Field(
        default=None,
        description="Annotations of all objects of its jobs; they take precedence over spec.annotations of the job.",
    )
    driver_service_account: DriverServiceAccount | None = Field(
        default=None,
        description="The ServiceAccount that the operator creates for a job's driver. If the template gives driver pods a "
        "serviceAccountName, no account is created or changed: the driver's rights are bound to that one.",
    )
    user_ids: UserIds | None = Field(
        default=None,
        description="`Fixed`: containers run as the users of the images (10001, graders and environments as 10002, Ray's head as 10003) "
        "unless a pod template sets others. `Platform`: no user or group is set, for platforms that assign them by namespace, such as OpenShift. "
        "Default: Fixed.",
    )
    common: RoleTemplate = Field(default_factory=RoleTemplate, description="Merged first, into every role.")
    roles: RolesTemplate = Field(default_factory=RolesTemplate)
    reward_templates: list[PoolTemplate] = Field(
        default_factory=list,
        max_length=16,
        description="Templates for reward pools, for jobs to choose from.",
        json_schema_extra=list_map("name"),
    )
    environment_templates: list[PoolTemplate] | None = Field(
        default=None,
        max_length=16,
        description="Templates for environment pools, for jobs to choose from.",
        json_schema_extra=list_map("name"),
    )
