"""When the shapes of engines and promptOvercommit may change, of which each is chosen for what the other one is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True, slots=True)
class LastChanges:
    """The periods, counted from 0, in which the plan of shapes and promptOvercommit last changed; -1 before they have.

    Only one of the two changes in a period: the first to do so. The other one stays until the next period, whose rounds it can be chosen
    by. To choose the factor takes a while, so it changes only if shapes have stayed since the period in which its choice began; and after
    a period in which shapes have changed it is chosen anew. What is edited in the spec, and what engines can't take, changes shapes in
    any case.
    """

    shapes: int = -1
    overcommit: int = -1

    def shapes_may_change(self, period: int) -> bool:
        """Whether the plan of shapes may change in this period."""
        return self.overcommit < period

    def overcommit_may_change(self, since: int) -> bool:
        """Whether promptOvercommit may become what has been chosen since this period began."""
        return self.shapes < since

    def with_shapes(self, period: int) -> LastChanges:
        """After a change of the plan of shapes in this period."""
        return replace(self, shapes=period)

    def with_overcommit(self, period: int) -> LastChanges:
        """After a change of promptOvercommit in this period."""
        return replace(self, overcommit=period)

    def to_snapshot(self) -> dict[str, int]:
        """As plain JSON values, for checkpoints."""
        return asdict(self)

    @classmethod
    def from_snapshot(cls, snapshot: Mapping[str, int]) -> LastChanges:
        """Inverse of `to_snapshot`."""
        return cls(int(snapshot["shapes"]), int(snapshot["overcommit"]))
