"""Which phase a job is in, and which condition's reason explains it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.explanations import EXPLANATIONS
from longboat_crds.reasons import ConditionType, Reason
from longboat_crds.status import Condition, Phase
from longboat_operator.status.publication import phase_of, reason_of

TIME = "2026-01-01T00:00:00Z"


def said(kind: ConditionType, holds: bool, reason: Reason) -> Condition:
    return Condition(type=kind, status=str(holds), reason=reason, last_transition_time=TIME)


RESOLVED = said(ConditionType.RUNTIME_RESOLVED, True, Reason.RUNTIME_RESOLVED)
READY = said(ConditionType.ROLES_READY, True, Reason.ALL_ROLES_READY)
TRAINING = said(ConditionType.RUNNING, True, Reason.TRAINING)
FAILED = said(ConditionType.FAILED, True, Reason.MODEL_NOT_FOUND)


@pytest.mark.parametrize(
    ("conditions", "wants_pods", "has_pods", "phase", "reason"),
    [
        ((), True, False, Phase.PENDING, None),
        (
            (RESOLVED, said(ConditionType.SCHEDULED, False, Reason.NAME_TAKEN)),
            True, False, Phase.PENDING, Reason.NAME_TAKEN,
        ),
        (
            (said(ConditionType.ROLES_READY, False, Reason.IMAGE_PULL_FAILED),
             said(ConditionType.RUNNING, False, Reason.PODS_STARTING)),
            True, True, Phase.STARTING, Reason.IMAGE_PULL_FAILED,
        ),
        (
            (READY, said(ConditionType.RUNNING, False, Reason.DRIVER_STARTING)),
            True, True, Phase.STARTING, Reason.DRIVER_STARTING,
        ),
        ((READY, TRAINING, said(ConditionType.DEGRADED, False, Reason.AS_ASKED)), True, True, Phase.RUNNING, Reason.TRAINING),
        ((READY, TRAINING, said(ConditionType.DEGRADED, True, Reason.NO_GRADERS)), True, True, Phase.RUNNING, Reason.NO_GRADERS),
        ((READY, said(ConditionType.RUNNING, False, Reason.HEAD_LOST)), True, True, Phase.RESTARTING, Reason.HEAD_LOST),
        (
            (said(ConditionType.ROLES_READY, False, Reason.NODE_LOST),
             said(ConditionType.RUNNING, False, Reason.RESTARTING)),
            True, False, Phase.RESTARTING, Reason.NODE_LOST,
        ),
        (
            (TRAINING, said(ConditionType.SUSPENDED, False, Reason.SUSPEND_REQUESTED)),
            False, True, Phase.SUSPENDING, Reason.SUSPEND_REQUESTED,
        ),
        (
            (said(ConditionType.SUSPENDED, True, Reason.CHECKPOINT_KEPT),),
            False, False, Phase.SUSPENDED, Reason.CHECKPOINT_KEPT,
        ),
        ((TRAINING, FAILED), True, True, Phase.FAILED, Reason.MODEL_NOT_FOUND),
        (
            (said(ConditionType.SUCCEEDED, True, Reason.JOB_SUCCEEDED),), False, False,
            Phase.SUCCEEDED, Reason.JOB_SUCCEEDED,
        ),
    ],
)  # fmt: skip
def test_phases_and_their_reasons(
    conditions: tuple[Condition, ...], wants_pods: bool, has_pods: bool, phase: Phase, reason: Reason | None
) -> None:
    assert phase_of(conditions, wants_pods=wants_pods, has_pods=has_pods) is phase
    assert reason_of(conditions, phase) == reason


CONDITIONS = st.builds(
    said,
    st.sampled_from([kind for kind in ConditionType if kind not in {ConditionType.SUCCEEDED, ConditionType.FAILED}]),
    st.booleans(),
    st.sampled_from(list(EXPLANATIONS)),
)


@given(st.lists(CONDITIONS, unique_by=lambda c: c.type), st.booleans(), st.booleans())
def test_every_job_is_in_a_phase_and_an_end_is_final(conditions: list[Condition], wants: bool, has: bool) -> None:
    phase = phase_of(conditions, wants_pods=wants, has_pods=has)
    assert phase not in {Phase.SUCCEEDED, Phase.FAILED}
    assert phase is Phase.TERMINATING or wants is (phase not in {Phase.SUSPENDING, Phase.SUSPENDED})
    assert reason_of(conditions, phase) in {None, *(c.reason for c in conditions)}
    assert phase_of([*conditions, FAILED], wants_pods=wants, has_pods=has) is Phase.FAILED
    assert reason_of([*conditions, FAILED], Phase.FAILED) == Reason.MODEL_NOT_FOUND
