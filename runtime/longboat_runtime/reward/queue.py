"""Decides which grade is asked for next: the queue of one reward pool. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")


class Rank(NamedTuple):
    """Orders groups; the smallest comes first."""

    round: int
    missing: int
    number: int


@dataclass(slots=True, eq=False)
class Group:
    """The samples of one attempt at a prompt that are being graded: `under_way` of them, in any pool.

    `number` is its place in the order in which groups came, `round` the number of its round, and `missing` how many grades it still
    lacks (see `protocol.Urgency`).
    """

    number: int
    round: int
    missing: int
    under_way: int = 0

    @property
    def rank(self) -> Rank:
        """Rank of the group's requests in a queue.

        Rule: what decides something first is graded first. Rounds are trained in the order in which they were opened, so an older
        round's groups come before a newer one's. Within a round the group that lacks the fewest grades comes first: it is the next that
        can be kept or, for equal rewards, replaced, which takes the generation of another group; a grade for one whose other responses
        are still being generated decides nothing yet. Groups that lack as many keep the order in which they came.
        """
        return Rank(self.round, self.missing, self.number)


@dataclass(slots=True)
class _Waiting(Generic[Item]):
    """The requests of one group, by number."""

    group: Group
    items: dict[int, Item] = field(default_factory=dict)


class GradeQueue(Generic[Item]):
    """Requests in the order of `Group.rank`; those of one group by number, lowest first.

    Moving a group touches none of its requests.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting[Item]] = {}
        # A heap of the ranks that groups have or have had; outdated ones are passed over.
        self._ranks: list[Rank] = []

    def put(self, group: Group, number: int, item: Item) -> None:
        """Adds a request, or one that was taken and has to be asked again."""
        self._waiting.setdefault(group.number, _Waiting(group)).items[number] = item
        self.moved(group)

    def moved(self, group: Group) -> None:
        """Moves the group's requests to where its new rank puts them."""
        if group.number in self._waiting:
            heappush(self._ranks, group.rank)

    def remove(self, group: Group, number: int) -> None:
        """Takes a request out, if it is there."""
        waiting = self._waiting.get(group.number)
        if waiting is not None:
            waiting.items.pop(number, None)
            if not waiting.items:
                del self._waiting[group.number]

    def take(self) -> Item | None:
        """Takes the first request; None if there is none."""
        while self._ranks:
            waiting = self._waiting.get(self._ranks[0].number)
            if waiting is None or waiting.group.rank != self._ranks[0]:
                heappop(self._ranks)
                continue
            number = min(waiting.items)
            item = waiting.items[number]
            self.remove(waiting.group, number)
            return item
        return None
