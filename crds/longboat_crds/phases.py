"""Tells when a job is in each phase, which condition explains it, and what to do about it. Pure.

The operator decides by this table, and docs/conditions.md is generated from it.
"""

from dataclasses import dataclass

from longboat_crds.reasons import ConditionType, Reason
from longboat_crds.status import Phase


@dataclass(frozen=True, slots=True)
class PhaseRule:
    """A phase. It holds when everything that is given here about a condition and about the job's pods is true."""

    phase: Phase
    meaning: str
    cure: str
    """What a person should do."""
    explained_by: tuple[ConditionType, ...]
    """`status.reason` is the reason of the first of them that is True, or, if none is, of the last one present."""
    awaited: bool = False
    """The reason is that of the first one that is not True instead: the job waits for them."""
    condition: ConditionType | None = None
    status: bool = True
    """The condition's status."""
    reasons: tuple[Reason, ...] = ()
    """The condition has one of these; if none is given, any."""
    wants_pods: bool | None = None
    """Whether the job should have pods: it should unless it has ended, is suspended or is being suspended."""
    has_pods: bool | None = None


# The first that holds is the job's phase. The last always holds.
PHASES = (
    PhaseRule(
        Phase.SUCCEEDED,
        "All steps are done and the model is exported. Final.",
        "Take the model from where status.checkpoint.export says; with ttlSecondsAfterFinished the job deletes itself.",
        (ConditionType.SUCCEEDED,),
        condition=ConditionType.SUCCEEDED,
    ),
    PhaseRule(
        Phase.FAILED,
        "The job was given up, and its pods are deleted. Final.",
        "Fix what the reason names, in a new job; to resume from the checkpoints of this one, set checkpoint.resumeFrom.",
        (ConditionType.FAILED,),
        condition=ConditionType.FAILED,
    ),
    PhaseRule(
        Phase.TERMINATING,
        "The job was deleted, but finalizers block its removal. Its pods are deleted.",
        "Ask the owner of the finalizers that the message of Running names, or remove them from metadata.finalizers.",
        (ConditionType.RUNNING,),
        awaited=True,
        condition=ConditionType.RUNNING,
        status=False,
        reasons=(Reason.JOB_DELETED,),
    ),
    PhaseRule(
        Phase.SUSPENDED,
        "The job holds no pods because spec.suspend is true.",
        "Set spec.suspend to false to resume it.",
        (ConditionType.SUSPENDED,),
        wants_pods=False,
        has_pods=False,
    ),
    PhaseRule(
        Phase.SUSPENDING,
        "The driver saves a final checkpoint, then all pods are deleted.",
        "Wait: for checkpoint.graceSeconds at most, and until the pods are gone.",
        (ConditionType.SUSPENDED,),
        wants_pods=False,
        has_pods=True,
    ),
    PhaseRule(
        Phase.RUNNING,
        "Rounds are running.",
        "Nothing. If the reason is not Training, the job is degraded: see that reason.",
        (ConditionType.DEGRADED, ConditionType.RUNNING),
        condition=ConditionType.RUNNING,
    ),
    PhaseRule(
        Phase.RESTARTING,
        "Rounds are interrupted because the driver, the Ray head or another pod that they can't do without failed.",
        "Nothing at first: what failed is replaced, and failurePolicy sets when the job is given up. If it lasts, see the reason.",
        (ConditionType.ROLES_READY, ConditionType.RUNNING),
        awaited=True,
        condition=ConditionType.RUNNING,
        status=False,
        reasons=(Reason.RESTARTING, Reason.HEAD_LOST),
    ),
    PhaseRule(
        Phase.QUEUED,
        "Not all of the job's minimum of pods has nodes: the driver, all trainer pods, min(replicas, max(1, minReplicas)) rollout pods, "
        "and a reward pod of each pool.",
        "Wait, or make room as the reason says. A job that holds part of its minimum for failurePolicy.placementTimeoutSeconds releases it "
        "and tries again; no job fails because it waits.",
        (ConditionType.SCHEDULED, ConditionType.ROLES_READY, ConditionType.RUNNING),
        awaited=True,
        condition=ConditionType.RUNNING,
        status=False,
        reasons=(Reason.QUEUED,),
    ),
    PhaseRule(
        Phase.STARTING,
        "The minimum of pods has nodes, but no round has run since the job was started or resumed.",
        "Wait. If it lasts, see the reason: a job without a committed step fails after failurePolicy.startDeadlineSeconds of this.",
        (ConditionType.ROLES_READY, ConditionType.RUNNING),
        awaited=True,
        has_pods=True,
    ),
    PhaseRule(
        Phase.PENDING,
        "The job has no pods yet.",
        "Fix what the reason names; the job then starts automatically.",
        (ConditionType.RUNTIME_RESOLVED, ConditionType.SCHEDULED),
        awaited=True,
    ),
)


def rule_of(phase: Phase) -> PhaseRule:
    """Returns the phase's rule."""
    return next(rule for rule in PHASES if rule.phase is phase)
