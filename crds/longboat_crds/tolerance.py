"""Reads what another version may have written, as far as this version can. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from longboat_crds.base import FieldsModel

Model = TypeVar("Model", bound=FieldsModel)


def read_known(model: type[Model], value: Mapping[str, Any]) -> Model:
    """Reads a value without the parts that this version doesn't know or can't read.

    The rule: a key that the model lacks, and a value that doesn't fit its field, are left out. Whatever needs a part that is missing is left
    out too: an item of a list, or the value of a field.

    Raises:
        ValidationError: nothing would be left, since a field that the model itself needs is missing or unreadable.
    """
    readable: Any = value
    while True:
        try:
            return model.model_validate(readable)
        except ValidationError as error:
            if readable is value:
                readable = copy.deepcopy(dict(value))
            places = {_place_of(readable, each["loc"]) for each in error.errors(include_url=False, include_input=False)}
            if () in places:
                raise
            # From the end, so that the items of a list keep their numbers until it is their turn.
            for place in sorted(places, key=_order, reverse=True):
                _remove(readable, place)


def _place_of(value: Any, location: Sequence[str | int]) -> tuple[str | int, ...]:
    """Returns the part of an error's location that is in the value: all of it or, for a missing field, that of what lacks it."""
    place: list[str | int] = []
    for key in location:
        parts = dict(enumerate(value)) if isinstance(value, list) else value
        if not isinstance(parts, dict) or key not in parts:
            break
        value = parts[key]
        place.append(key)
    return tuple(place)


def _order(place: Sequence[str | int]) -> list[tuple[bool, str | int]]:
    return [(isinstance(key, str), key) for key in place]


def _remove(value: Any, place: Sequence[str | int]) -> None:
    """Removes what is at the place, unless it went with something that it was a part of."""
    for key in place[:-1]:
        value = value[key]
    del value[place[-1]]
