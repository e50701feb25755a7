"""Whole objects as they appear in a manifest: apiVersion, kind, metadata, spec and status."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from longboat_crds.base import JOB_NAME_MAX_LENGTH, JOB_NAME_PATTERN, ApiModel, ReferenceName
from longboat_crds.job import RLJobSpec
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
