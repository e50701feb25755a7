"""The order in which a pool's grades are asked for."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from longboat_runtime.reward.queue import GradeQueue, Group


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(1, 3)), max_size=12))
def test_an_older_round_first_then_the_group_that_lacks_the_fewest_grades_then_who_came_first(
    groups: list[tuple[int, int, int]],
) -> None:
    """Groups of a round that lack so many grades, with so many requests each."""
    queue: GradeQueue[tuple[int, int]] = GradeQueue()
    number = 0
    for place, (round_, missing, requests) in enumerate(groups):
        group = Group(place, round_, missing)
        for _ in range(requests):
            queue.put(group, number, (place, number))
            number += 1
    taken = [queue.take() for _ in range(number)]
    assert taken == sorted(taken, key=lambda item: (*groups[item[0]][:2], *item))
    assert queue.take() is None


def test_a_group_that_gets_a_grade_overtakes_those_that_lack_as_many() -> None:
    queue: GradeQueue[str] = GradeQueue()
    first, second = Group(0, 1, 4), Group(1, 1, 4)
    queue.put(first, 0, "first")
    queue.put(second, 1, "second")
    second.missing -= 1
    queue.moved(second)
    assert [queue.take(), queue.take()] == ["second", "first"]


class Queue(RuleBasedStateMachine):
    """Whatever happens, the queue gives what a search of all that waits would find."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: GradeQueue[int] = GradeQueue()
        self.groups: list[Group] = []
        self.waiting: dict[int, Group] = {}
        self.taken: dict[int, Group] = {}
        self.number = 0

    def put(self, group: Group, number: int) -> None:
        self.queue.put(group, number, number)
        self.waiting[number] = group

    @rule(round_=st.integers(0, 2), missing=st.integers(0, 3))
    def begin(self, round_: int, missing: int) -> None:
        self.groups.append(Group(len(self.groups), round_, missing))
        self.put(self.groups[-1], self.number)
        self.number += 1

    @precondition(lambda self: self.groups)
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        self.put(data.draw(st.sampled_from(self.groups)), self.number)
        self.number += 1

    @precondition(lambda self: self.groups)
    @rule(data=st.data(), round_=st.integers(0, 2), missing=st.integers(0, 3))
    def move(self, data: st.DataObject, round_: int, missing: int) -> None:
        group = data.draw(st.sampled_from(self.groups))
        group.round, group.missing = round_, missing
        self.queue.moved(group)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.waiting)))
        self.queue.remove(self.waiting.pop(number), number)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.taken)))
        self.put(self.taken.pop(number), number)

    @rule()
    def take(self) -> None:
        number = self.queue.take()
        wanted = min(self.waiting, key=lambda n: (self.waiting[n].rank, n), default=None)
        assert number == wanted
        if number is not None:
            self.taken[number] = self.waiting.pop(number)

    @invariant()
    def a_request_that_was_given_up_or_never_asked_changes_nothing(self) -> None:
        for group in self.groups:
            self.queue.remove(group, -1)


TestQueue = Queue.TestCase
