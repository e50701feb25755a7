"""Chunks beside any policy: the trainer works on finished groups while their round is open. Pure.

Source: RollPacker, "stream trainer" (arXiv:2509.21009). Differs in that groups are taken for the whole round, whenever a chunk is full.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import Event
from longboat_runtime.rounds.policy import Decision, Policy
from longboat_runtime.rounds.rules import next_chunk
from longboat_runtime.rounds.view import View


@dataclass(frozen=True, slots=True)
class Streaming:
    """Decides as `policy` does and, where that decides nothing, begins chunks of at least `least_tokens` tokens.

    A step waits for the chunk that is under way, and nothing else does. `unscored` names the reward functions whose timeouts count what is
    known only with the batch (`rules.next_chunk`).
    """

    policy: Policy
    least_tokens: int
    unscored: Set[str] = frozenset()

    def decide(self, view: View, event: Event) -> Sequence[Decision]:
        if isinstance(event.body, events.Lost) and view.streamed(event.body.sample.prompt):
            return []  # nothing is asked for again
        if decisions := self.policy.decide(view, event):
            return decisions
        match event.body:
            case events.Graded(sample=sample) if (group := view.groups.get(sample.prompt)) and not group.whole:
                return []
            case events.Graded() | events.ChunkDone() | events.ChunksLost() | events.StepFailed() | events.Published():
                return next_chunk(view, self.least_tokens, self.unscored)
        return []  # after other events no more groups are ready than before
