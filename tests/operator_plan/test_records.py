"""Counting restarts: each once, however seldom one looks."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.base import Role
from longboat_crds.failure import FailurePolicySpec
from longboat_crds.status import MAX_PODS, PodRecord, RoleStatus
from longboat_operator.plan.creation import wait_seconds
from longboat_operator.plan.losses import Lost, loss_of
from longboat_operator.plan.records import (
    Look,
    RoleCount,
    count,
    is_past,
    place_of,
    published_records,
    released,
    remembered,
)
from longboat_operator.pods.names import JobRef, Place, numbered
from longboat_operator.reading.intact import indexes_of, is_intact, ranges_of, stored_records
from longboat_operator.reading.times import stamp
from longboat_operator.reading.view import PodView
from longboat_operator.status.roles import RoleSurvey, role_status

JOB = JobRef("research", "sums", "uid")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def pod(index: int, attempt: int, restarts: int = 0, *, phase: str = "Running", deleted: bool = False) -> PodView:
    metadata = {"name": JOB.pod(Role.TRAINER, Place("", index), attempt)} | (
        {"deletionTimestamp": "2026-01-01T00:00:30Z"} if deleted else {}
    )
    raw = {
        "metadata": metadata,
        "status": {"phase": phase, "containerStatuses": [{"name": "trainer", "restartCount": restarts}]},
    }
    return PodView(
        metadata["name"], f"uid-{index}-{attempt}", Place("", index), attempt, raw, own=("trainer", "monitoring")
    )


def look(memory: RoleCount, pods: list[PodView], *, desired: int = 2, step: int = 0) -> RoleCount:
    """One look at the role's pods."""
    lost = {pod.uid: loss for pod in pods if (loss := loss_of(pod))}
    return count(Look(JOB, step, NOW, Lost(lost)), Role.TRAINER, memory, pods, numbered(desired))


def through_status(counted: RoleCount) -> RoleCount:
    text = role_status(RoleSurvey(Role.TRAINER, (), ()), counted).to_json()
    return remembered(RoleStatus.model_validate(text))


def test_a_second_look_counts_nothing_again() -> None:
    pods = [pod(0, 0, 2), pod(1, 0, phase="Failed")]
    first = look(RoleCount(), pods)
    assert (first.restarts, len(first.news)) == (3, 2)
    second = look(through_status(first), pods)
    assert (second.restarts, second.news) == (3, ())


def test_a_pod_that_vanished_is_a_loss() -> None:
    first = through_status(look(RoleCount(), [pod(0, 0), pod(1, 0)]))
    second = look(first, [pod(0, 0)])
    assert second.restarts == 1
    assert second.records[Place("", 1)].lost_time
    assert second.news[0].pod == "sums-trainer-1-a0"


def test_an_index_that_was_never_made_is_none() -> None:
    assert look(RoleCount(), [pod(0, 0)]).restarts == 0


def test_a_pod_that_reappears_is_no_longer_lost() -> None:
    first = through_status(look(RoleCount(), [pod(0, 0)], desired=1))
    gone = through_status(look(first, [], desired=1))
    assert look(gone, [pod(0, 0)], desired=1).records[Place("", 0)].lost_time is None


def test_restarts_are_forgiven_by_a_new_step_not_by_one_that_is_done_again() -> None:
    memory = through_status(look(RoleCount(), [pod(0, 0, 3)], desired=1, step=11))
    assert memory.since(11) == 3
    again = through_status(look(memory, [pod(0, 0, 4)], desired=1, step=11))
    assert again.since(11) == 4, "rolled back to 10, and 11 was done again"
    assert again.since(12) == 0
    later = look(again, [pod(0, 0, 5)], desired=1, step=12)
    assert (later.since(12), later.restarts) == (1, 5)


def test_the_cause_of_each_container_that_ended_is_told_once_however_far_apart_they_ended() -> None:
    def ended(**containers: tuple[int, int]) -> PodView:
        """The trainer pod, of whose containers each was restarted so often, the last time so many seconds ago."""
        statuses = [
            {
                "name": name,
                "restartCount": restarts,
                "lastState": {"terminated": {"exitCode": 1, "finishedAt": stamp(NOW - timedelta(seconds=ago))}},
            }
            for name, (restarts, ago) in containers.items()
        ]
        found = pod(0, 0)
        return replace(found, raw={**found.raw, "status": {"phase": "Running", "containerStatuses": statuses}})

    def causes(memory: RoleCount) -> list[str]:
        return [record.message.split()[1] for record in memory.news]

    first = look(RoleCount(), [ended(monitoring=(1, 390), trainer=(1, 300))], desired=1)
    assert (causes(first), first.since(0)) == (["monitoring", "trainer"], 2)
    second = look(through_status(first), [ended(monitoring=(1, 390), trainer=(3, 0))], desired=1)
    assert (causes(second), second.restarts) == (["trainer"], 4), "what was told is not told again"


def test_scaled_down_pods_are_no_losses_and_their_attempts_stay_used_up() -> None:
    memory = through_status(look(RoleCount(), [pod(0, 0), pod(1, 3)]))
    down = through_status(look(memory, [pod(0, 0), pod(1, 3)], desired=1))
    assert (down.restarts, down.next_attempt, set(down.records)) == (0, 4, set(numbered(1)))
    up = look(down, [pod(0, 0), pod(1, 3, deleted=True)])
    assert (up.restarts, set(up.records)) == (0, set(numbered(1))), "what is on its way out is not taken up again"
    assert set(look(through_status(up), [pod(0, 0), pod(1, 4)]).records) == set(numbered(2))


def test_released_keeps_counts_and_uses_up_attempts() -> None:
    memory = look(RoleCount(), [pod(0, 0, 1), pod(1, 2)])
    freed = released(memory, [pod(0, 5)])
    assert (freed.records, freed.restarts, freed.next_attempt) == ({}, 1, 6)


EVENTS = st.lists(
    st.tuples(st.sampled_from(["crash", "evict", "delete", "vanish", "replace", "look"]), st.integers(0, 1))
)


@given(EVENTS)
def test_any_history_is_counted_exactly(events: list[tuple[str, int]]) -> None:
    """Losses are made good only after a look, as plans do; of a pod that goes unseen only its loss is counted."""
    pods: dict[int, PodView | None] = {0: pod(0, 0), 1: pod(1, 0)}
    crashes: dict[int, int] = {0: 0, 1: 0}
    memory = through_status(look(RoleCount(), [p for p in pods.values() if p]))
    counted, losses = 0, 0
    seen = {0: 0, 1: 0}

    def see() -> None:
        nonlocal memory, counted, losses
        for index, found in pods.items():
            record = memory.records[Place("", index)]
            if record.lost_time:
                continue
            if found:
                counted += crashes[index] - seen[index]
                seen[index] = crashes[index]
            if found is None or found.phase == "Failed" or found.deleted_at:
                losses += 1
        memory = through_status(look(memory, [p for p in pods.values() if p]))

    handlers: dict[str, Callable[[PodView, int], Any]] = {
        "crash": lambda p, i: pod(i, p.attempt, crashes[i]),
        "evict": lambda p, i: pod(i, p.attempt, crashes[i], phase="Failed"),
        "delete": lambda p, i: pod(i, p.attempt, crashes[i], deleted=True),
        "vanish": lambda _p, _i: None,
    }
    for event, index in [*events, ("look", 0)]:
        found = pods[index]
        if event == "look":
            see()
        elif event == "replace":
            if memory.records[Place("", index)].lost_time and found is None:
                pods[index] = pod(index, memory.records[Place("", index)].attempt + 1)
                crashes[index] = seen[index] = 0
                see()
        elif found and found.phase == "Running" and not found.deleted_at:
            crashes[index] += event == "crash"
            pods[index] = handlers[event](found, index)
        elif found and event == "vanish":
            pods[index] = None
    assert memory.restarts == counted + losses


@given(st.integers(1, 200), st.integers(0, 3600), st.integers(0, 86_400))
def test_the_wait_doubles_to_its_cap(losses: int, backoff: int, cap: int) -> None:
    policy = FailurePolicySpec.model_construct(backoff_seconds=backoff, max_backoff_seconds=cap)
    first, wait, longer = (wait_seconds(n, policy) for n in (1, losses, losses + 1))
    assert first == min(backoff, cap)
    assert wait <= longer <= cap
    assert longer in {2 * wait, float(cap)}


# Pods to which nothing has happened.


records = st.builds(
    PodRecord,
    pool=st.sampled_from([None, "code", "math"]),
    index=st.integers(0, 40),
    attempt=st.integers(0, 3),
    restarts=st.sampled_from([0, 0, 0, 1]),
    losses=st.sampled_from([0, 0, 0, 2]),
    lost_time=st.sampled_from([None, None, None, stamp(NOW)]),
    gone=st.sampled_from([None, None, True]),
    failed=st.sampled_from([None, None, "pod"]),
    node=st.sampled_from([None, "node0"]),
    was_ready=st.booleans(),
)


@given(st.lists(records, unique_by=lambda record: (record.pool, record.index)), st.integers(0, 3))
def test_what_the_status_keeps_is_remembered_but_for_nodes_of_pods_to_which_nothing_has_happened(
    given_records: list[PodRecord], next_attempt: int
) -> None:
    memory = RoleCount(records={place_of(record): record for record in given_records}, next_attempt=next_attempt)
    fields = published_records(memory)
    stored = RoleStatus.model_validate(RoleStatus(next_attempt=next_attempt, **fields).to_json())
    remembered_records = remembered(stored).records
    assert remembered_records.keys() == memory.records.keys()
    alone = {place_of(record) for record in stored.pods or ()}
    for place, record in memory.records.items():
        kept = remembered_records[place]
        assert kept == (record if place in alone else record.model_copy(update={"node": None}))
        assert place in alone or (is_intact(record) and record.attempt >= next_attempt)
    assert published_records(replace(memory, records=remembered_records)) == fields, "it is stable"
    as_json = {(r.get("pool"), r["index"], r["attempt"]) for r in stored_records(stored.to_json())}
    assert as_json == {(r.pool, r.index, r.attempt) for r in given_records}


@given(st.sets(st.integers(0, 9999)))
def test_numbers_are_written_as_ranges(numbers: set[int]) -> None:
    assert [*indexes_of(ranges_of(numbers))] == sorted(numbers) if numbers else ranges_of(numbers) == ""


def test_a_thousand_pods_to_which_nothing_has_happened_take_less_than_a_hundred_bytes() -> None:
    pods = [pod(index, 0) for index in range(1024)]
    counted = look(RoleCount(), pods, desired=1024)
    assert len(json.dumps(published_records_json(counted))) < 100
    second = look(through_status(counted), [pod(0, 0, 1), *pods[1:512], *pods[513:]], desired=1024)
    assert second.restarts == 2
    stored = published_records_json(second)
    assert [record["index"] for record in stored["pods"]] == [0, 512]
    assert [group["indexes"] for group in stored["intact"]] == ["1-511,513-1023"]


def published_records_json(counted: RoleCount) -> dict[str, Any]:
    return RoleStatus(**published_records(counted)).model_dump(
        mode="json", by_alias=True, exclude_none=True, include={"pods", "intact"}
    )


def test_a_version_that_does_not_know_the_compact_form_gives_no_pod_up() -> None:
    """It takes a pod without a record for one that was given up if its attempt is below `nextAttempt`."""
    counted = look(RoleCount(next_attempt=1), [pod(0, 1), pod(1, 1)])
    counted = replace(counted, records={**counted.records, Place("", 1): PodRecord(index=1, attempt=0)})
    status = RoleStatus(next_attempt=1, **published_records(counted))
    without = remembered(status.model_copy(update={"intact": None}))
    assert not is_past(without, pod(0, 1))
    assert not is_past(without, pod(1, 0))


def test_compact_records_of_another_form_are_left_out() -> None:
    role = {"intact": [{"attempt": 0, "indexes": "all"}, {"attempt": 0}, {"attempt": 0, "indexes": "0-1", "x": 1}, 5]}
    assert [record["index"] for record in stored_records(role)] == [0, 1]
    huge = {"intact": [{"attempt": attempt, "indexes": "0-999999"} for attempt in range(9)]}
    assert sum(1 for _ in stored_records(huge)) == MAX_PODS
    assert len(remembered(RoleStatus.model_validate(huge)).records) <= MAX_PODS
    backwards = {"intact": [{"attempt": 0, "indexes": ",".join(["5-3"] * 8000)}] * 45}
    assert sum(1 for _ in stored_records(backwards)) == MAX_PODS, "it ends soon"
