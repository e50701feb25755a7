"""`spec.failurePolicy`: how often each role may be restarted, and how long a job waits for pods."""

from typing import Annotated, ClassVar

from pydantic import Field

from longboat_crds.base import READER_DEFAULT, ApiModel, Seconds
from longboat_crds.expressions import at_most, field
from longboat_crds.rules import Rule

Restarts = Annotated[int, Field(ge=0, le=1000)]


class FailurePolicySpec(ApiModel):
    """Limits count the incidents of a role, which are forgiven as steps commit.

    Containers that end and pods that are lost within a minute are one incident, whatever the nodes, but one that fails twice
    is two. Pods that are evicted through the API or preempted, or whose node is gone or shuts down, are replaced and never counted. Nor is
    the failure of a driver that lost such a pod or got no answer from the API server. Only containers that Longboat itself puts into a pod
    count, not those that a runtime template adds or the cluster injects.
    """

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            at_most(field("backoffSeconds"), field("maxBackoffSeconds")),
            "the wait grows from backoffSeconds to at most maxBackoffSeconds: raise maxBackoffSeconds",
            "maxBackoffSeconds",
        ),
    )

    max_driver_restarts: Restarts = Field(default=5, description="More incidents of the driver fail the job.")
    max_rollout_restarts: Restarts = Field(
        default=10,
        description="More incidents of rollout pods fail the job; so do more deaths of engines in pods that stay up, which are counted "
        "separately.",
    )
    max_reward_restarts: Restarts = Field(default=10, description="More incidents of reward pods fail the job.")
    max_environment_restarts: Restarts = Field(
        default=10,
        description="More incidents of environment pods fail the job.",
        json_schema_extra={READER_DEFAULT: True},
    )
    max_trainer_restarts: Restarts = Field(default=5, description="More incidents of trainer pods fail the job.")
    backoff_seconds: Seconds = Field(
        default=10, description="Wait before the first replacement of a pod; it doubles each time."
    )
    max_backoff_seconds: Seconds = Field(default=300, description="Longest wait before a replacement.")
    start_deadline_seconds: Seconds = Field(
        default=1800,
        ge=1,
        description="The job fails if, with nodes for its minimum of pods, these are not ready or its driver reports nothing for this "
        "long in all. Only such time counts; it adds up until rounds run or the job is suspended. Once a step is committed, this no "
        "longer applies.",
    )
    placement_timeout_seconds: Seconds = Field(
        default=600,
        ge=1,
        description="How long a starting job may hold nodes for part of its minimum of pods, counted from the last pod that got one. Then "
        "all its pods are deleted, and created again after a wait. Of the jobs that wait like this, the one that ranks first has twice as "
        "long.",
        json_schema_extra={READER_DEFAULT: True},
    )
    recovery_timeout_seconds: Seconds = Field(
        default=1800,
        ge=1,
        description="How long a running job may lack a pod of its minimum. Then its driver saves and ends, all its pods are deleted, and "
        "the job is Queued.",
        json_schema_extra={READER_DEFAULT: True},
    )
