"""The small parts of a status."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.quantities import cpu_quantity, in_bytes, millicores
from longboat_crds.reasons import ConditionType, Reason
from longboat_crds.status import Phase, RLJobStatus
from longboat_operator.plan.incarnations import granted, revoked
from longboat_operator.reading.conditions import Finding, find
from longboat_operator.reading.status import read_status
from longboat_operator.reading.terminations import last_termination
from longboat_operator.reading.times import moment, seconds_until, stamp
from longboat_operator.status.conditions import updated
from longboat_operator.status.roles import cpu_limits

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def ended(
    code: int, reason: str = "Error", message: str = "", at: str = "2026-01-01T00:00:00Z", **more: object
) -> dict:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": at, **more}}


def words(state: dict, name: str = "trainer") -> str:
    found = last_termination([{"name": name, "restartCount": 1, "lastState": state}])
    assert found
    return found.text


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (ended(1), "container trainer ended with exit code 1"),
        (ended(134), "container trainer ended with exit code 134 (SIGABRT)"),
        (ended(143), "container trainer ended with exit code 143 (SIGTERM)"),
        (ended(200), "container trainer ended with exit code 200 (signal 72)"),
        (ended(0), "container trainer ended with exit code 0"),
        (
            ended(137, "OOMKilled"),
            "container trainer went over its memory limit: OOMKilled, exit code 137 (SIGKILL)",
        ),
        (ended(1, message="a\nb\nc\nd\ne\nf\n"), "container trainer ended with exit code 1; last lines: b\nc\nd\ne\nf"),
    ],
)
def test_an_end_in_words(state: dict, text: str) -> None:
    assert words(state) == text


def test_an_image_that_is_too_old_is_said_to_be() -> None:
    text = words(ended(2, message="Error: No such option: --pool"))
    assert "No such option: --pool; the image is too old for this operator" in text
    assert "renewOnResume" in text
    assert "too old" not in words(ended(2, message="Error: no such file")) + words(
        ended(1, message="No such option: -x")
    )


def test_the_end_of_long_last_lines_is_kept() -> None:
    assert words(ended(1, message="x" * 5000 + "cause")).endswith("xcause")
    assert len(words(ended(1, message="x" * 5000))) < 700


def test_the_newest_end_of_all_containers_counts() -> None:
    statuses = (
        {"name": "graders", "restartCount": 1, "lastState": ended(1, at="2026-01-01T00:00:05Z")},
        {"name": "reward", "restartCount": 4, "lastState": ended(2, at="2026-01-01T00:00:01Z")},
    )
    found = last_termination(statuses)
    assert found
    assert found.container == "graders"
    assert last_termination([{"name": "reward", "restartCount": 0}]) is None


@given(st.lists(st.integers(0, 10_000), max_size=20))
def test_sums_of_cpus_are_exact(millis: list[int]) -> None:
    pods = [
        {"spec": {"containers": [{"name": "graders", "resources": {"limits": {"cpu": f"{m}m"}}}, {"name": "reward"}]}}
        for m in millis
    ]
    total = cpu_limits(pods, "graders")
    assert (total is None) == (not millis)
    if total is not None:
        assert millicores(total) == sum(millis)


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [
        ("64Mi", 64 * 2**20),
        ("1.5Gi", 3 * 2**29),
        ("2G", 2 * 10**9),
        ("1000", 1000),
        ("1500m", 1),
        ("1e3", 1000),
        ("1E", 10**18),
    ],
)
def test_quantities_of_memory(quantity: str, expected: int) -> None:
    assert in_bytes(quantity) == expected


def test_quantities_of_cpus() -> None:
    assert [cpu_quantity(millicores(q)) for q in ("2", "0.5", "1500m", "1k", "1n")] == [
        "2",
        "500m",
        "1500m",
        "1000",
        "1m",
    ]
    assert cpu_limits([{"spec": {"containers": [{"name": "graders"}]}}], "graders") is None


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    later, last = NOW + timedelta(seconds=5), NOW + timedelta(seconds=9)
    first = updated(None, [Finding(ConditionType.RUNNING, False, Reason.PODS_STARTING)], 1, NOW)
    second = updated(first, [Finding(ConditionType.RUNNING, False, Reason.RESTARTING, "x")], 2, later)
    third = updated(second, [Finding(ConditionType.RUNNING, True, Reason.TRAINING)], 2, last)
    times = [found.last_transition_time for c in (first, second, third) if (found := find(c, ConditionType.RUNNING))]
    assert times == [stamp(NOW), stamp(NOW), stamp(last)]
    assert updated(third, [Finding(ConditionType.RUNNING, True, Reason.TRAINING)], 2, last + timedelta(1)) == third


def test_conditions_that_nobody_speaks_of_stay_and_messages_fit() -> None:
    first = updated(None, [Finding(ConditionType.DEGRADED, True, "MadeUpLater", "x" * 9000)], 1, NOW)
    second = updated(first, [Finding(ConditionType.RUNNING, True, Reason.TRAINING)], 1, NOW)
    assert {c.type for c in second} == {"Degraded", "Running"}
    assert max(len(c.message) for c in second) == 4096


def test_fields_of_another_version_are_passed_over() -> None:
    status = {
        "phase": "Running",
        "later": 1,
        "training": {"incarnation": 1, "state": "Running", "later": {"x": 1}},
        "conditions": [
            {"type": "Running", "status": "True", "reason": "Training", "lastTransitionTime": stamp(NOW), "later": 2}
        ],
    }
    read = read_status(status)
    assert read.phase is Phase.RUNNING
    assert read.training
    assert read == RLJobStatus.model_validate(read.to_json())
    assert "later" in status, "what was given is left alone"


@given(st.datetimes(min_value=datetime(2000, 1, 1), max_value=datetime(2100, 1, 1)), st.integers(-12, 12))  # noqa: DTZ001
def test_times_go_through_text(time: datetime, hours: int) -> None:
    aware = time.replace(tzinfo=timezone(timedelta(hours=hours)))
    back = moment(stamp(aware))
    assert timedelta(0) <= aware - back < timedelta(seconds=1)
    assert 9 < seconds_until(stamp(aware), 10, aware) <= 10


TOKENS = st.sampled_from(["a", "b", "c", "", None])


@given(st.lists(st.one_of(st.tuples(st.just("ask"), TOKENS), st.tuples(st.just("resume"), st.none()))))
def test_numbers_of_incarnations(events: list[tuple[str, str | None]]) -> None:
    current = None
    for event, token in events:
        before = current
        current = revoked(current) if event == "resume" else granted(current, token)
        if current is None:
            continue
        if before is not None:
            assert current.number >= before.number
        if event == "ask" and token:
            assert current.request == token
            assert granted(current, token) == current, "asked again, the same answer"
            assert before is None or (current.number > before.number) == (before.request != token)
        if event == "resume" and before:
            assert current.number == before.number + 1
