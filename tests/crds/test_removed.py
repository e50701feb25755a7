"""Fields and values that were removed: a manifest with them is refused with the cure, and a stored job with them is read."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import pytest
from pydantic import BeforeValidator, Field

from longboat_crds.base import ApiModel
from longboat_crds.load import ApiError, checked
from longboat_crds.rules import Removed
from longboat_crds.schema import VALIDATIONS, json_schema, structural


class Mode(StrEnum):
    FIXED = "Fixed"


class Part(ApiModel):
    mode: Annotated[
        Mode,
        Removed("choose Fixed", ("Auto", "Fast")),
        BeforeValidator(lambda value: "Fixed" if value in ("Auto", "Fast") else value),
    ] = Mode.FIXED
    speed: Annotated[int | None, Removed("leave it out")] = None


class Whole(ApiModel):
    first: Part = Part()
    others: list[Part] = Field(default_factory=list)
    count: int = 1
    part: Annotated[Part | None, Removed("its name is first")] = None


@pytest.mark.parametrize(
    ("value", "problems"),
    [
        ({"first": {"mode": "Fixed"}, "part": None}, []),
        ({"first": {"mode": "Auto"}}, ["first.mode: Auto and Fast were removed: choose Fixed"]),
        ({"others": [{}, {"speed": 0}]}, ["others[1].speed: was removed: leave it out"]),
        ({"part": {"speed": 0}}, ["part: was removed: its name is first"]),
        (
            {"part": {}, "count": "1", "first": 3},
            [
                "part: was removed: its name is first",
                "first: must be an object of fields (it is 3)",
                "count: must be a whole number (it is '1')",
            ],
        ),
        ({"parts": []}, ["parts: no such field; known fields are first, others, count"]),
    ],
)
def test_a_manifest_with_what_was_removed_is_refused_with_the_cure(value: dict[str, Any], problems: list[str]) -> None:
    refused: list[str] = []
    try:
        checked(Whole, value)
    except ApiError as error:
        refused = error.problems
    assert refused == problems


def test_what_is_stored_with_it_is_read() -> None:
    stored = Whole.model_validate({"first": {"mode": "Auto", "speed": 3}, "part": {"mode": "Fast"}})
    assert stored.first.mode is Mode.FIXED


def test_the_api_server_knows_it_and_refuses_it() -> None:
    whole = structural(json_schema(Whole))["properties"]
    part = whole["first"]["properties"]
    assert part["mode"]["enum"] == ["Fixed", "Auto", "Fast"]
    assert part["mode"][VALIDATIONS][0]["rule"] == "!(self in ['Auto', 'Fast'])"
    assert part["speed"]["type"] == "integer"
    assert part["speed"][VALIDATIONS][0]["rule"] == "false"
    assert "properties" not in whole["part"], "whatever is stored is kept"
