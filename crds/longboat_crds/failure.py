"""`spec.failurePolicy`: how often what may be restarted."""

from typing import Annotated, ClassVar

from pydantic import Field

from longboat_crds.base import ApiModel, Seconds
from longboat_crds.expressions import at_most, field
from longboat_crds.rules import Rule

Restarts = Annotated[int, Field(ge=0, le=1000)]


class FailurePolicySpec(ApiModel):
    """Limits count incidents of a role, forgiven as steps commit.

    Containers that end and pods that are lost within a minute are one incident, whatever the nodes. Pods that Kubernetes evicts,
    preempts, or deletes because their node is gone are replaced and never counted; nor is the driver's failure when it lost such a pod.
    """

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            at_most(field("backoffSeconds"), field("maxBackoffSeconds")),
            "backoffSeconds is where the wait begins and maxBackoffSeconds where it stops growing: raise maxBackoffSeconds",
            "maxBackoffSeconds",
        ),
    )

    max_driver_restarts: Restarts = Field(5, description="More incidents of the driver fail the job.")
    max_rollout_restarts: Restarts = Field(
        10,
        description="More incidents of rollout pods fail the job; so do more deaths of engines in pods that live, which are counted "
        "apart.",
    )
    max_reward_restarts: Restarts = Field(10, description="More incidents of reward pods fail the job.")
    max_trainer_restarts: Restarts = Field(5, description="More incidents of trainer pods fail the job.")
    backoff_seconds: Seconds = Field(
        10, description="Wait before the first replacement of a pod; it doubles each time."
    )
    max_backoff_seconds: Seconds = Field(300, description="Longest wait before a replacement.")
    start_deadline_seconds: Seconds = Field(1800, ge=1, description="Roles not ready by then fail the job.")
