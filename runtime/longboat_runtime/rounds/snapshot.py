"""The ledger as JSON, for checkpoints. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter

from longboat_runtime.rounds.events import DeferReason, DropReason
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.records import GivenUp, GroupRecord, RoundRecord
from longboat_runtime.samples import PromptId, SampleId

_SCALARS = (
    "seq",
    "incarnation",
    "steps",
    "step",
    "serving",
    "publishing",
    "last_round",
    "short_rounds",
    "races",
    "calm_rounds",
    "drawn",
    "trained",
    "skipped_steps",
)
# What snapshots of earlier versions lack. Steps made by them are taken for ones that have learned.
_LATER: dict[str, Callable[[Ledger], Any]] = {"idle_steps": lambda _: 0, "learned": lambda ledger: ledger.step > 0}
_GIVEN_UP = TypeAdapter(list[GivenUp])
_GROUPS = TypeAdapter(list[GroupRecord])
_ROUND = TypeAdapter(RoundRecord)
_ROUNDS = TypeAdapter(list[RoundRecord])


def to_snapshot(ledger: Ledger) -> dict[str, Any]:
    """Returns the ledger as plain JSON values; two ledgers have the same state if and only if their snapshots are equal."""
    return {
        "group_size": ledger.group_size,
        **{name: getattr(ledger, name) for name in (*_SCALARS, *_LATER)},
        "dropped": {str(reason): count for reason, count in sorted(ledger.dropped.items())},
        "deferred": {str(reason): count for reason, count in sorted(ledger.deferred.items())},
        "queue": [[*prompt, attempt] for prompt, attempt in ledger.queue.items()],
        "domains": [[*prompt, domain] for prompt, domain in ledger.domains.items()],
        "given_up": _GIVEN_UP.dump_python(list(ledger.deferred_prompts.values()), mode="json"),
        "groups": _GROUPS.dump_python(list(ledger.groups.values()), mode="json"),
        "rounds": _ROUNDS.dump_python(list(ledger.rounds.values()), mode="json"),
        "lost": [list(sample) for sample in ledger.lost],
        "carried": [list(prompt) for prompt in ledger.carried],
        "between": _ROUND.dump_python(ledger.between, mode="json"),
    }


def from_snapshot(snapshot: Mapping[str, Any]) -> Ledger:
    """Reads what `to_snapshot` returned. Raises KeyError if a part is missing, TypeError or ValueError for most malformed ones."""
    ledger = Ledger(snapshot["group_size"])
    for name in _SCALARS:
        setattr(ledger, name, snapshot[name])
    for name, default in _LATER.items():
        setattr(ledger, name, snapshot[name] if name in snapshot else default(ledger))
    ledger.dropped = Counter({DropReason(reason): count for reason, count in snapshot["dropped"].items()})
    ledger.deferred = Counter({DeferReason(reason): count for reason, count in snapshot["deferred"].items()})
    ledger.domains = {PromptId(epoch, row): domain for epoch, row, domain in snapshot["domains"]}
    given_up = {record.prompt: record for record in _GIVEN_UP.validate_python(snapshot["given_up"])}
    for epoch, row, attempt in snapshot["queue"]:
        prompt = PromptId(epoch, row)
        ledger.enqueue(prompt, attempt, given_up.get(prompt))
    ledger.groups = {group.prompt: group for group in _GROUPS.validate_python(snapshot["groups"])}
    ledger.rounds = {round_.number: round_ for round_ in _ROUNDS.validate_python(snapshot["rounds"])}
    ledger.lost = {SampleId(*sample): None for sample in snapshot["lost"]}
    ledger.carried = {PromptId(*prompt): None for prompt in snapshot["carried"]}
    ledger.between = _ROUND.validate_python(snapshot["between"])
    ledger.counts = Counter(record.state for group in ledger.groups.values() for record in group.samples)
    return ledger
