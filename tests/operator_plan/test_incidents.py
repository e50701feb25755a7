"""What fails together counts once, whoever looks, whenever, and in whatever order."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.base import Role
from longboat_crds.status import RoleStatus
from longboat_operator.plan.incidents import INCIDENT
from longboat_operator.plan.losses import Lost, loss_of
from longboat_operator.plan.records import Look, RoleCount, count, remembered
from longboat_operator.pods.names import JobRef, Place, numbered
from longboat_operator.reading.times import stamp
from longboat_operator.reading.view import PodView
from longboat_operator.status.roles import RoleSurvey, role_status

JOB = JobRef("research", "sums", "uid")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
PODS = 5
# Incidents may not lie closer than that: a failure in between could belong to either.
APART = 2 * int(INCIDENT.total_seconds()) + 1
LATER = BEGIN + timedelta(days=1)


@dataclass
class Pod:
    """A trainer pod as the API server has it; the kubelet and the API server note when something happened."""

    index: int
    attempt: int = 0
    restarts: int = 0
    ended: datetime | None = None
    deleted: datetime | None = None
    cause: str | None = None

    def fail(self, kind: str, time: datetime) -> None:
        """Its container ends, or the pod is deleted; one that was deleted has been replaced before."""
        if self.deleted:
            self.attempt, self.restarts, self.ended, self.deleted = self.attempt + 1, 0, None, None
        if kind == "ends":
            self.restarts, self.ended = self.restarts + 1, time
        else:
            self.deleted = time

    def view(self) -> PodView:
        metadata: dict[str, Any] = {"name": JOB.pod(Role.TRAINER, Place("", self.index), self.attempt)}
        status: dict[str, Any] = {"name": "trainer", "restartCount": self.restarts}
        if self.ended:
            status["lastState"] = {"terminated": {"exitCode": 1, "finishedAt": stamp(self.ended)}}
        if self.deleted:
            metadata["deletionTimestamp"] = stamp(self.deleted + timedelta(seconds=30))
            metadata["deletionGracePeriodSeconds"] = 30
        raw = {
            "metadata": metadata,
            "spec": {"nodeName": f"node{self.index % 3}"},
            "status": {"phase": "Running", "containerStatuses": [status]},
        }
        return PodView(
            metadata["name"], f"{self.index}-{self.attempt}", Place("", self.index), self.attempt, raw, own=("trainer",)
        )


@dataclass
class Operators:
    """One operator after another: each knows of the one before only what is in the status."""

    memory: RoleCount = field(default_factory=RoleCount)
    pods: list[Pod] = field(default_factory=lambda: [Pod(index) for index in range(PODS)])

    def look(self, now: datetime, *, published: bool = True) -> int:
        """Incidents after a look; one whose plan is cut short before the status is as if it had not been."""
        pods = [pod.view() for pod in self.pods]
        lost = {pod.uid: loss for pod in pods if (loss := loss_of(pod))}
        found = count(Look(JOB, 7, now, Lost(lost)), Role.TRAINER, self.memory, pods, numbered(PODS))
        if published:
            text = role_status(RoleSurvey(Role.TRAINER, numbered(PODS), ()), found).to_json()
            self.memory = remembered(RoleStatus.model_validate(text))
        return found.since(7)


@st.composite
def histories(draw: st.DrawFn) -> list[list[tuple[int, str, datetime]]]:
    """Incidents far enough apart: of each, the pods that fail in it, how, and when."""
    found = []
    for number in range(draw(st.integers(1, 3))):
        failing = draw(st.lists(st.integers(0, PODS - 1), min_size=1, max_size=PODS, unique=True))
        begin = BEGIN + number * timedelta(seconds=APART + 60)
        found.append([
            (index, draw(st.sampled_from(["ends", "is deleted"])), begin + timedelta(seconds=draw(st.integers(0, 60))))
            for index in failing
        ])  # fmt: skip
    return found


@given(histories(), st.data())
def test_neither_the_order_of_looks_nor_who_looks_changes_the_count(
    history: list[list[tuple[int, str, datetime]]], data: st.DataObject
) -> None:
    """Each pod's own failures are seen in their order, all else in any, and as late as can be."""
    operators = Operators()
    operators.look(BEGIN)
    waiting = {index: [f for incident in history for f in incident if f[0] == index] for index in range(PODS)}
    while any(waiting.values()):
        index = data.draw(st.sampled_from([i for i, failures in waiting.items() if failures]))
        _, kind, time = waiting[index].pop(0)
        operators.pods[index].fail(kind, time)
        for published in data.draw(st.lists(st.booleans(), max_size=2)):
            operators.look(LATER, published=published)
        operators.look(LATER)
    assert operators.look(LATER) == len(history)


@given(st.lists(st.integers(0, PODS - 1), min_size=1, max_size=30), st.integers(0, 300))
def test_what_fails_again_has_failed_twice(failing: list[int], seconds: int) -> None:
    """However close the ends of one container lie, each is another incident: a crash loop reaches its limit."""
    operators = Operators()
    operators.look(BEGIN)
    for number, index in enumerate(failing):
        now = BEGIN + timedelta(seconds=number * seconds)
        operators.pods[index].fail("ends", now)
        operators.look(now)
    most = max(failing.count(index) for index in failing)
    assert most <= operators.look(LATER) <= len(failing)
    if seconds > INCIDENT.total_seconds():
        assert operators.look(LATER) == len(failing)


def test_a_container_that_ends_and_its_pod_that_is_lost_with_it_are_one_incident() -> None:
    operators = Operators()
    operators.look(BEGIN)
    operators.pods[3].fail("ends", BEGIN + timedelta(seconds=5))
    operators.look(BEGIN + timedelta(seconds=6))
    operators.pods[3].fail("is deleted", BEGIN + timedelta(seconds=30))
    assert operators.look(BEGIN + timedelta(seconds=31)) == 1
    operators.pods[3].fail("is deleted", BEGIN + timedelta(seconds=45))
    assert operators.look(BEGIN + timedelta(seconds=46)) == 2, "the next pod of this index"
