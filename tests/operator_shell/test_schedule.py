"""The schedule's rules, against a model that is plainly right."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from longboat_operator.schedule import LONGEST_BACKOFF_SECONDS, Schedule, TokenBucket, backoff_seconds
from tests.support.examples import examples

KEYS = st.sampled_from("abcd")
DELAYS = st.integers(0, 5).map(float)


class ScheduleMachine(RuleBasedStateMachine):
    """Adds, timers, takes and dones in any order; the model keeps who is owed a turn."""

    def __init__(self) -> None:
        super().__init__()
        self.schedule: Schedule[str] = Schedule()
        self.now = 0.0
        self.line: list[str] = []
        self.in_work: set[str] = set()
        self.again: list[str] = []
        self.again_by: dict[str, float] = {}
        self.timers: dict[str, tuple[float, int]] = {}
        self.clock = 0

    def _need(self, key: str) -> None:
        if key in self.in_work:
            if key not in self.again:
                self.again.append(key)
        elif key not in self.line:
            self.line.append(key)

    def _expire(self) -> None:
        for key, (when, _) in sorted(self.timers.items(), key=lambda item: item[1]):
            if when <= self.now:
                del self.timers[key]
                self._need(key)

    @rule(key=KEYS)
    def add(self, key: str) -> None:
        self._expire()
        self.schedule.ready(self.now)
        self.schedule.add(key, self.now)
        self._need(key)

    @rule(key=KEYS, delay=DELAYS)
    def add_at(self, key: str, delay: float) -> None:
        self.schedule.add_at(key, self.now + delay)
        self.clock += 1
        self.timers[key] = (self.now + delay, self.clock)

    @rule(key=KEYS, delay=DELAYS)
    def add_by(self, key: str, delay: float) -> None:
        self._expire()
        self.schedule.ready(self.now)
        self.schedule.add_by(key, self.now + delay)
        self._need_by(key, self.now + delay)

    def _need_by(self, key: str, when: float) -> None:
        if key in self.in_work:
            self.again_by[key] = min(when, self.again_by.get(key, when))
        elif key not in self.line and when < self.timers.get(key, (float("inf"), 0))[0]:
            self.clock += 1
            self.timers[key] = (when, self.clock)

    @rule(key=KEYS)
    def cancel(self, key: str) -> None:
        self.schedule.cancel(key)
        self.timers.pop(key, None)

    @rule(seconds=DELAYS)
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def take(self) -> None:
        self._expire()
        expected = self.line.pop(0) if self.line else None
        assert self.schedule.take(self.now) == expected
        if expected is not None:
            self.in_work.add(expected)

    @precondition(lambda self: self.in_work)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.in_work)))
        self._expire()
        self.schedule.ready(self.now)
        self.schedule.done(key, self.now)
        self.in_work.remove(key)
        by = self.again_by.pop(key, None)
        if key in self.again:
            self.again.remove(key)
            self._need(key)
        elif by is not None:
            self._need_by(key, by)

    @invariant()
    def next_timer_is_the_earliest(self) -> None:
        pending = [when for when, _ in self.timers.values()]
        assert self.schedule.next_timer() == min(pending, default=None)


TestSchedule = ScheduleMachine.TestCase
TestSchedule.settings = settings(max_examples=examples(50))


def test_a_timer_set_again_to_the_same_time_goes_behind_the_others_of_that_time() -> None:
    schedule: Schedule[str] = Schedule()
    for key in "bab":
        schedule.add_at(key, 0.0)
    assert [schedule.take(0.0) for _ in range(3)] == ["a", "b", None]


def test_a_timer_set_again_ends_once() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.add_at("a", 1.0)
    schedule.add_at("a", 1.0)
    assert schedule.take(1.0) == "a"
    schedule.done("a", 1.0)
    assert schedule.take(1.0) is None
    schedule.add_at("a", 2.0)
    schedule.cancel("a")
    schedule.add_at("a", 3.0)
    assert schedule.take(2.0) is None
    assert schedule.take(3.0) == "a"


def test_a_key_added_while_in_work_keeps_its_age() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.add("a", 0.0)
    assert schedule.take(1.0) == "a"
    schedule.add("a", 2.0)
    assert schedule.take(3.0) is None
    schedule.done("a", 3.0)
    assert schedule.depth() == 1
    assert schedule.oldest(10.0) == 8.0
    assert schedule.take(10.0) == "a"


def test_what_is_in_work_for_long_shows_as_old() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.add("a", 0.0)
    schedule.take(5.0)
    assert schedule.depth() == 0
    assert schedule.oldest(65.0) == 60.0


def test_a_long_line_is_no_stall_as_long_as_plans_end() -> None:
    schedule: Schedule[int] = Schedule()
    for key in range(10_000):
        schedule.add(key, 0.0)
    for second in range(1, 1001):
        key = schedule.take(float(second))
        assert key is not None
        assert schedule.stalled(float(second)) <= 1.0
        schedule.done(key, float(second))
    assert schedule.oldest(1000.0) == 1000.0
    assert schedule.stalled(1700.0) == 700.0


def test_work_that_does_not_end_is_a_stall_and_nothing_to_do_is_none() -> None:
    schedule: Schedule[str] = Schedule()
    assert schedule.stalled(1e6) == 0.0
    schedule.add("a", 1e6)
    assert schedule.stalled(1e6 + 5.0) == 5.0
    schedule.take(1e6 + 5.0)
    schedule.add("b", 1e6 + 500.0)
    schedule.take(1e6 + 500.0)
    schedule.done("b", 1e6 + 600.0)
    assert schedule.stalled(1e6 + 605.0) == 600.0


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=40), st.integers(0, 2))
def test_a_small_group_waits_for_no_more_keys_than_there_are_groups(groups: list[str], turns: int) -> None:
    schedule: Schedule[tuple[str, int]] = Schedule(lambda key: key[0])
    for number, group in enumerate(groups):
        schedule.add((group, number), 0.0)
    for _ in range(turns):
        schedule.take(0.0)
    schedule.add(("small", 0), 0.0)
    taken = [schedule.take(0.0) for _ in range(4)]
    assert ("small", 0) in taken
    for group in "abc":
        numbers = [key[1] for key in taken if key and key[0] == group]
        assert numbers == sorted(numbers), "first in line, first served"


def test_a_timer_that_is_set_anew_often_costs_no_memory() -> None:
    schedule: Schedule[str] = Schedule()
    for second in range(10_000):
        schedule.add_at("a", float(second))
    assert len(schedule._heap) < 200
    assert schedule.take(9_998.0) is None
    assert schedule.take(9_999.0) == "a"


@given(st.integers(1, 10_000))
def test_backoff_doubles_and_is_capped(failures: int) -> None:
    assert 0 < backoff_seconds(failures) <= LONGEST_BACKOFF_SECONDS
    assert backoff_seconds(failures + 1) in (2 * backoff_seconds(failures), LONGEST_BACKOFF_SECONDS)


@given(st.floats(0.5, 100), st.integers(1, 20), st.lists(st.floats(0, 3), max_size=60))
def test_the_bucket_lets_through_no_more_than_its_rate(rate: float, burst: int, pauses: list[float]) -> None:
    bucket, now, taken = TokenBucket(rate, burst), 0.0, []
    for pause in pauses:
        now += pause
        wait = bucket.wait_seconds(now)
        assert wait >= 0
        now += wait
        bucket.take(now)
        taken.append(now)
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            assert last - first + 1 <= burst + (taken[last] - taken[first]) * rate + 1e-6


def test_the_bucket_doesnt_slow_a_burst() -> None:
    bucket = TokenBucket(rate=1.0, burst=3)
    for _ in range(3):
        assert bucket.wait_seconds(0.0) == 0.0
        bucket.take(0.0)
    assert bucket.wait_seconds(0.0) == 1.0
