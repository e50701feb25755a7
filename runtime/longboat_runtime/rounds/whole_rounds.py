"""Rounds that wait for every response of exactly as many prompts as they train. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from longboat_runtime.rounds.events import DropReason
from longboat_runtime.rounds.policy import Action, Close, Launch
from longboat_runtime.rounds.view import PartView, View

# With dropZeroVariance a round draws new prompts for dropped groups until it has drawn so many times `promptsPerRound`, and
# then trains smaller: DAPO's dynamic sampling with the bound of verl's recipe (`max_num_gen_batches: 10`).
MAX_DRAWS_PER_ROUND = 10


def settle_whole(
    view: View, round_: PartView, prompts: int, group_size: int, *, drop_zero_variance: bool
) -> Sequence[Action]:
    """Fills an open round with `prompts` groups of `group_size` responses, and closes it once every group is decided."""
    if missing := _missing(round_, prompts, drop_zero_variance=drop_zero_variance):
        queued = tuple(islice(view.queue, missing))
        return [Launch(round_.number, group_size, queued, missing - len(queued))]
    return [] if round_.undecided else [Close(round_.number)]


def _missing(round_: PartView, prompts: int, *, drop_zero_variance: bool) -> int:
    """Prompts to launch: those of the round and one for each dropped for zero variance, less those that were launched."""
    wanted = prompts
    if drop_zero_variance:
        redrawn = wanted + round_.dropped.get(DropReason.ZERO_VARIANCE, 0)
        wanted = min(redrawn, wanted * MAX_DRAWS_PER_ROUND)
    return wanted - (round_.launched - sum(round_.deferred.values()))
