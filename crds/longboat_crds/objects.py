"""Whole objects as they appear in a manifest: apiVersion, kind, metadata, spec and status."""

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from longboat_crds.base import (
    JOB_AND_ENVIRONMENT_POOL_MAX_LENGTH,
    JOB_NAME_MAX_LENGTH,
    JOB_NAME_PATTERN,
    ApiModel,
    ReferenceName,
)
from longboat_crds.expressions import at_most, constant, every, field, implies, plus, present, size
from longboat_crds.job import RLJobSpec
from longboat_crds.rules import Rule
from longboat_crds.runtime import RLRuntimeSpec
from longboat_crds.status import RLJobStatus

JobName = Annotated[str, Field(pattern=JOB_NAME_PATTERN, min_length=1, max_length=JOB_NAME_MAX_LENGTH)]
ApiVersion = Literal["longboat.dev/v1alpha1"]


class ObjectMeta(BaseModel):
    """The parts of metadata that are checked; the rest is kept as it is."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: ReferenceName
    namespace: str = "default"
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class JobMeta(ObjectMeta):
    """Metadata of an RLJob; the names of its pods begin with its own."""

    name: JobName


class RLJob(ApiModel):
    """One post-training job of a language model by reinforcement learning."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            implies(
                present("spec.environmentPools"),
                every(
                    "spec.environmentPools",
                    "p",
                    at_most(
                        plus(size(field("metadata.name")), size(field("name", variable="p"))),
                        constant(JOB_AND_ENVIRONMENT_POOL_MAX_LENGTH),
                    ),
                ),
            ),
            "pods are named after the job and their pool, whose names may have at most "
            f"{JOB_AND_ENVIRONMENT_POOL_MAX_LENGTH} characters together: shorten the name of the pool, or metadata.name",
            "spec.environmentPools",
        ),
    )

    api_version: ApiVersion
    kind: Literal["RLJob"]
    metadata: JobMeta
    spec: RLJobSpec
    status: RLJobStatus | None = None


class RLRuntime(ApiModel):
    """A template of a job's pods, for jobs of its namespace."""

    api_version: ApiVersion
    kind: Literal["RLRuntime"]
    metadata: ObjectMeta
    spec: RLRuntimeSpec


class ClusterRLRuntime(ApiModel):
    """A template of a job's pods, for jobs of all namespaces."""

    api_version: ApiVersion
    kind: Literal["ClusterRLRuntime"]
    metadata: ObjectMeta
    spec: RLRuntimeSpec


KINDS: dict[str, type[RLJob | RLRuntime | ClusterRLRuntime]] = {
    "RLJob": RLJob,
    "RLRuntime": RLRuntime,
    "ClusterRLRuntime": ClusterRLRuntime,
}
