"""Reads values that another version may have written. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any, TypeVar

from pydantic import ValidationError

from longboat_crds.base import FieldsModel

Model = TypeVar("Model", bound=FieldsModel)


def read_known(model: type[Model], value: Mapping[str, Any]) -> Model:
    """Reads a value without the parts that this version doesn't know or can't read.

    Rule: unknown keys and values that don't fit their field are dropped. An object that then lacks a required field is dropped too.

    Raises:
        ValidationError: the value itself lacks a required field, or breaks a rule of its model.
    """
    readable: Any = value
    while True:
        try:
            return model.model_validate(readable)
        except ValidationError as error:
            places = {_place_of(readable, each["loc"]) for each in error.errors(include_url=False, include_input=False)}
            if () in places:
                raise
            if readable is value:
                readable = copy.deepcopy(dict(value))
            # Last first, so that the indexes of list items stay valid. Keys of one container have one type.
            for *parents, key in sorted(places, reverse=True):
                del reduce(getitem, parents, readable)[key]


def _place_of(value: Any, location: Sequence[str | int]) -> tuple[str | int, ...]:
    """Returns the part of an error's location that exists in the value; a missing field's is that of its parent."""
    place: list[str | int] = []
    for key in location:
        try:
            value = value[key]
        except (LookupError, TypeError):
            break
        place.append(key)
    return tuple(place)
