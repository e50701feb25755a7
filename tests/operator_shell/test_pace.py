"""What happens again and again happens ever more rarely."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longboat_operator.pace import Pace
from longboat_operator.schedule import FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS
from tests.operator_shell.test_rejections import Clock


@given(eagerness=st.floats(0.01, LONGEST_BACKOFF_SECONDS))
def test_whoever_tries_whenever_it_may_comes_once_a_minute_in_the_end(eagerness: float) -> None:
    clock = Clock()
    pace, times = Pace(clock), []
    while clock.now < 600.0:
        if pace.wait == 0.0:
            pace.note()
            times.append(clock.now)
        clock.now += eagerness
    assert times[0] == 0.0
    assert len(times) <= 8 + 600.0 / LONGEST_BACKOFF_SECONDS
    assert times[-1] - times[-2] >= LONGEST_BACKOFF_SECONDS


def test_ten_quiet_minutes_are_a_new_beginning() -> None:
    clock = Clock()
    pace = Pace(clock)
    for _ in range(9):
        clock.now += pace.wait
        pace.note()
    assert pace.wait == LONGEST_BACKOFF_SECONDS
    clock.now += 10 * LONGEST_BACKOFF_SECONDS
    assert pace.wait == 0.0
    pace.note()
    assert pace.wait == FIRST_BACKOFF_SECONDS
