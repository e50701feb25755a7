"""The best shape for each kind of round in each phase of the trace, found afterwards from rounds of fixed shapes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

# A phase of the trace, and whether rounds are long ones.
Situation = tuple[int, bool]


@dataclass(frozen=True, slots=True)
class Oracle:
    """`sizes` of engines by situation; `seconds` that all rounds and changes would have taken, of each seed; `changes` in a run.

    `late_seconds` are those if the first round of each phase still has the size of the phase before, as for anyone who learns of a phase
    from its rounds.
    """

    sizes: Mapping[Situation, int]
    seconds: Sequence[float]
    late_seconds: Sequence[float]
    changes: int


def oracle(situations: Sequence[Situation], seconds: Mapping[int, Sequence[Sequence[float]]], change: float) -> Oracle:
    """Finds the choice that takes the least time over all seeds together.

    It has one size for each situation, and is charged `change` seconds for each change.

    `seconds[size][seed][round]` are those of rounds in fixed shape, the rounds of all seeds in the same situations. It begins in its
    first size, and knows all lengths beforehand. All choices are tried. Raises ValueError if a seed hasn't as many rounds as
    `situations`.
    """
    kinds = sorted(set(situations))
    sums = {
        size: {kind: sum(_total(run, situations, kind) for run in runs) for kind in kinds}
        for size, runs in seconds.items()
    }
    runs = len(next(iter(seconds.values())))

    def changes(sizes: Mapping[Situation, int]) -> int:
        return sum(sizes[before] != sizes[after] for before, after in pairwise(situations))

    def cost(sizes: Mapping[Situation, int]) -> float:
        return sum(sums[size][kind] for kind, size in sizes.items()) + runs * change * changes(sizes)

    best = min((dict(zip(kinds, chosen, strict=True)) for chosen in product(seconds, repeat=len(kinds))), key=cost)
    chosen = [best[situation] for situation in situations]
    late = chosen[:1] + [best[phase, long] for (phase, _), (_, long) in pairwise(situations)]

    def taken(sizes: Sequence[int]) -> list[float]:
        number = sum(before != after for before, after in pairwise(sizes))
        return [
            sum(seconds[size][seed][place] for place, size in enumerate(sizes)) + change * number
            for seed in range(runs)
        ]

    return Oracle(best, taken(chosen), taken(late), changes(best))


def _total(run: Sequence[float], situations: Sequence[Situation], wanted: Situation) -> float:
    return sum(taken for taken, situation in zip(run, situations, strict=True) if situation == wanted)
