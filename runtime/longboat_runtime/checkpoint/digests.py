"""Digests of what a training started from, as a checkpoint holds them, and their differences. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from longboat_crds.checkpoint import TrainingInput

# For each input, its items by name: digests, versions and counts as text.
Digests = Mapping[TrainingInput, Mapping[str, str]]

# The items of an input that count only if both sides have them: they are known late, or change nothing about training.
WEIGHTS, EVALUATION = "weights", "the evaluation"
# The number of rows. Cursors, shuffles and the names of waiting prompts depend on it, so another one can't be accepted.
ROWS = "number of rows"
# The most characters of an item that a person would compare: versions and numbers are shorter, digests longer.
_READABLE = 24
# The longest text of a value of the spec, in characters.
_VALUE = 60


@dataclass(frozen=True, slots=True)
class Difference:
    """An input that isn't what it was, in words. One that isn't `acceptable` can only be put back."""

    input: TrainingInput
    text: str
    acceptable: bool = True

    def __str__(self) -> str:
        return f"{self.input}: {self.text}"


def digest(content: bytes | str) -> str:
    """Computes the XXH3 (128 bits) in hexadecimal digits: it finds changes, not attackers."""
    return xxhash.xxh3_128_hexdigest(content.encode() if isinstance(content, str) else content)


def with_weights(digests: Digests, checksum: str, dtype: str) -> Digests:
    """Returns the digests with the checksum of the weights before any training, in this number format; nothing compares two formats."""
    model = digests.get(TrainingInput.MODEL, {})
    return {**digests, TrainingInput.MODEL: {**model, _weights_in(dtype): checksum}}


def knows_weights(digests: Digests, dtype: str) -> bool:
    """Whether there is a checksum of the weights in this number format."""
    return _weights_in(dtype) in digests.get(TrainingInput.MODEL, {})


def _weights_in(dtype: str) -> str:
    """Returns the name of the checksum, which also names its rule: earlier releases had another, which nothing is compared with."""
    return f"{WEIGHTS} in {dtype} (by tensor)"


def read(state: Mapping[str, Any]) -> Digests:
    """Reads the digests in a state: none if it is from a release before them, and none of inputs that this release doesn't know."""
    inputs = {str(name) for name in TrainingInput}
    return {TrainingInput(name): dict(items) for name, items in state.get("digests", {}).items() if name in inputs}


def differences(saved: Digests, present: Digests) -> list[Difference]:
    """Lists what differs between the inputs of a checkpoint and those at hand, in the order of TrainingInput.

    Rules: an input that either side knows nothing of is no difference, since it can't be compared. Otherwise an item that only one
    side has is one, but for weights and evaluation rows. With another number of rows, digests of rows say nothing more.
    """
    return [
        difference
        for name in TrainingInput
        if name in saved and name in present
        for difference in _input_differences(name, saved[name], present[name])
    ]


def _input_differences(
    name: TrainingInput, saved: Mapping[str, str], present: Mapping[str, str]
) -> Iterator[Difference]:
    if saved.get(ROWS) != present.get(ROWS):
        yield Difference(name, _changed(ROWS, saved.get(ROWS), present.get(ROWS)), acceptable=False)
        return
    for item in dict.fromkeys((*saved, *present)):
        before, now = saved.get(item), present.get(item)
        if before == now or (item.startswith((WEIGHTS, EVALUATION)) and None in (before, now)):
            continue
        yield Difference(name, _changed(item, before, now))


def _changed(item: str, before: str | None, now: str | None) -> str:
    if before is None:
        return f"{item} is new"
    if now is None:
        return f"{item} is gone"
    readable = len(before) <= _READABLE and len(now) <= _READABLE
    return f"{item} was {before}, and is {now}" if readable else f"{item} has changed"


def spec_differences(saved: Mapping[str, Any], present: Mapping[str, Any], ignored: Sequence[str] = ()) -> list[str]:
    """Lists the fields in which two specs (as JSON) differ, each with both values, sorted by path; those below `ignored` fields aside."""
    before, now = dict(_leaves(saved)), dict(_leaves(present))
    return [
        f"{path}: {_short(before.get(path))} -> {_short(now.get(path))}"
        for path in sorted(before.keys() | now.keys())
        if before.get(path) != now.get(path) and path.partition(".")[0] not in ignored
    ]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{index}]")
    else:
        yield path, value


def _short(value: Any) -> str:
    text = "unset" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _VALUE else f"{text[: _VALUE - 3]}..."
