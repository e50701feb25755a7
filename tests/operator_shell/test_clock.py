"""The API server's time, told from its answers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

from hypothesis import given
from hypothesis import strategies as st

from longboat_operator.kube.clock import ServerClock

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
OFFSETS = st.integers(-7200, 7200).map(lambda seconds: timedelta(seconds=seconds))


def header(time: datetime) -> str:
    return format_datetime(time.replace(microsecond=0), usegmt=True)


class Server:
    """An API server, and an operator's machine: its seconds since boot, and its own clock."""

    def __init__(self, machine_ahead: timedelta = timedelta()) -> None:
        self.passed = 0.0
        self.clock = ServerClock(lambda: 1e6 + self.passed, lambda: self.now + machine_ahead)

    @property
    def now(self) -> datetime:
        return BEGIN + timedelta(seconds=self.passed)


@given(
    OFFSETS,
    st.lists(st.tuples(st.floats(0, 100), st.booleans(), st.floats(0, 30), st.floats(0, 100)), min_size=1),
)
def test_the_time_is_the_servers_never_ahead_of_it_and_never_backwards(
    machine_ahead: timedelta, answers: list[tuple[float, bool, float, float]]
) -> None:
    """Whatever the machine's own clock says, and however long answers are under way."""
    server = Server(machine_ahead)
    server.clock.note(header(server.now))
    before = server.clock.now()
    for silence, answers_now, late, later in answers:
        server.passed += silence
        if answers_now:
            date = header(server.now)
            server.passed += late
            server.clock.note(date)
            least = server.now - timedelta(seconds=late + 1.00001)
            assert server.clock.now() >= least
        server.passed += later
        now = server.clock.now()
        assert before <= now <= server.now + timedelta(microseconds=10)
        before = now


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), min_size=1))
def test_what_is_measured_by_it_is_exact(answers: list[tuple[float, bool]]) -> None:
    """Headers that come without delay only make it more exact; it never stands still, and in the end it is right."""
    server = Server()
    server.clock.note(header(server.now))
    for seconds, answers_now in answers:
        before = server.clock.now()
        server.passed += seconds
        if answers_now:
            server.clock.note(header(server.now))
        assert server.clock.now() - before >= timedelta(seconds=seconds - 1e-5)
    server.passed = float(round(server.passed) + 1)
    server.clock.note(header(server.now))
    server.passed += 0.25
    assert abs(server.clock.now() - server.now) <= timedelta(seconds=1e-5)


def test_a_server_whose_clock_is_set_back_is_waited_for() -> None:
    server = Server()
    server.clock.note(header(BEGIN + HOUR))
    assert server.clock.now() == BEGIN + HOUR
    server.passed = 10
    server.clock.note(header(BEGIN + timedelta(seconds=10)))
    assert server.clock.now() == BEGIN + HOUR
    server.passed = 3600 + 10
    assert server.clock.now() == BEGIN + HOUR + timedelta(seconds=10)


def test_the_machines_own_clock_counts_only_before_the_first_answer() -> None:
    server = Server(HOUR)
    assert server.clock.now() == BEGIN + HOUR
    server.clock.note(None)
    server.clock.note("Thu, 01 Jan")
    assert server.clock.now() == BEGIN + HOUR
    server.clock.note(header(BEGIN))
    assert server.clock.now() == BEGIN


@given(st.one_of(st.text(), st.from_regex(r"(Thu, )?\d{1,3} Jan \d{1,5} \d\d:\d\d:\d\d ([A-Z]{3}|[+-]\d{4})?")))
def test_a_header_that_nobody_can_read_does_no_harm(text: str) -> None:
    clock = ServerClock()
    clock.note(text)
    assert clock.now().tzinfo is not None
