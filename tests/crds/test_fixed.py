"""Every field of a spec is either free, changeable while suspended, or fixed once a job has started."""

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import Field

from longboat_crds.base import ApiModel
from longboat_crds.fixed import FIXED, FREE, WHILE_SUSPENDED, WITH_RENEWAL, mark, marks, section, transition_rules
from longboat_crds.job import RLJobSpec
from longboat_crds.load import checked
from longboat_crds.objects import RLJob
from longboat_crds.rules import Changeable, Removed
from tests.crds.manifests import changed
from tests.crds.rule_cases import BEFORE_CHANGE, CHANGES, WITH_CHANGE

PATHS = (*FREE, *WHILE_SUSPENDED, *WITH_RENEWAL, *FIXED)


def leaves(model: type[ApiModel], path: str = "") -> Iterator[str]:
    """Paths of all fields that are no objects of our own, but for removed ones."""
    for name, info in model.model_fields.items():
        if any(isinstance(part, Removed) and not part.values for part in info.metadata):
            continue
        here = f"{path}{info.alias or name}"
        within = section(info)
        if within is not None:
            yield from leaves(within, f"{here}.")
        else:
            yield here


class Inner(ApiModel):
    first: int = 0
    second: int = 0


class Half(ApiModel):
    followed: Annotated[int, Changeable.ANY_TIME] = Field(0, ge=0)
    not_followed: int = 0
    inner: Inner = Field(default_factory=Inner)


class Outer(ApiModel):
    half: Half
    inner: Inner
    marked: Annotated[Inner, Changeable.WHILE_SUSPENDED]
    sometimes: Annotated[Half | None, Changeable.WITH_RENEWAL] = None
    removed: Annotated[str | None, Removed("leave it out")] = None


def test_a_field_is_what_its_mark_says_and_fixed_without_one() -> None:
    assert dict(marks(Outer)) == {
        "half.followed": Changeable.ANY_TIME,
        "half.notFollowed": None,
        "half.inner": None,
        "inner": None,
        "marked": Changeable.WHILE_SUSPENDED,
        "sometimes": Changeable.WITH_RENEWAL,
    }


def test_every_field_is_judged_exactly_once() -> None:
    for leaf in leaves(RLJobSpec):
        judged = [path for path in PATHS if leaf == path or leaf.startswith(f"{path}.")]
        assert len(judged) == 1, f"{leaf}: {judged}"


def test_no_mark_stands_where_nobody_reads_it() -> None:
    """In an object that is marked as a whole, in one that may be left out, or in items of a list."""
    models = [model for model in ApiModel.__subclasses__() if model.__module__.startswith("longboat_crds.")]
    marked = sum(mark(info) is not None for model in models for info in model.model_fields.values())
    assert marked == len(FREE) + len(WHILE_SUSPENDED) + len(WITH_RENEWAL)


def test_all_that_is_not_free_has_a_rule() -> None:
    ruled = {rule["fieldPath"] for rule in transition_rules()}
    assert ruled == {f".spec.{path}" for path in (*WHILE_SUSPENDED, *WITH_RENEWAL, *FIXED, "rounds.steps")}


def test_a_change_is_tried_for_every_field_that_is_not_free() -> None:
    assert set(CHANGES) == {*FIXED, *WHILE_SUSPENDED}


@pytest.mark.parametrize("path", sorted(CHANGES))
def test_each_change_is_one_and_possible_before_the_start(path: str) -> None:
    base = BEFORE_CHANGE.get(path, {})
    before = checked(RLJob, changed(base))
    after = checked(RLJob, changed(base | {f"spec.{path}": CHANGES[path]} | WITH_CHANGE.get(path, {})))
    assert value_at(before, path) != value_at(after, path)


def value_at(job: RLJob, path: str) -> Any:
    value: Any = job.spec.to_json()
    for key in path.split("."):
        value = value.get(key)
    return value
