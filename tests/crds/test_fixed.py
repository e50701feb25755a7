"""Every field of a spec is either free, changeable while suspended, or fixed once a job has started."""

from collections.abc import Iterator

from longboat_crds.base import ApiModel
from longboat_crds.fixed import FIXED, FREE, WHILE_SUSPENDED, WITH_RENEWAL, transition_rules
from longboat_crds.job import RLJobSpec

LISTED = (*FREE, *WHILE_SUSPENDED, *WITH_RENEWAL, *FIXED)


def leaves(model: type[ApiModel], path: str = "") -> Iterator[str]:
    """Paths of all fields that are no objects of our own."""
    for name, info in model.model_fields.items():
        here = f"{path}{info.alias or name}"
        if isinstance(info.annotation, type) and issubclass(info.annotation, ApiModel):
            yield from leaves(info.annotation, f"{here}.")
        else:
            yield here


def test_every_field_is_judged_exactly_once() -> None:
    for leaf in leaves(RLJobSpec):
        judged = [path for path in LISTED if leaf == path or leaf.startswith(f"{path}.")]
        assert len(judged) == 1, f"{leaf}: {judged}"


def test_every_listed_path_is_a_field() -> None:
    found = list(leaves(RLJobSpec))
    assert [path for path in LISTED if not any(f"{leaf}.".startswith(f"{path}.") for leaf in found)] == []


def test_all_that_is_not_free_has_a_rule() -> None:
    ruled = {rule["fieldPath"] for rule in transition_rules()}
    assert ruled == {f".spec.{path}" for path in (*WHILE_SUSPENDED, *WITH_RENEWAL, *FIXED, "rounds.steps")}
