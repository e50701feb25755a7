"""Rules that a schema can't express: declared once beside the model, enforced by pydantic and, as CEL, by the API server. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Any

from pydantic.fields import FieldInfo

from longboat_crds.expressions import Expression


class Changeable(Enum):
    """When a field of a job's spec may be changed once the job has started: what a field is annotated with, or an object of fields.

    A field without a mark is fixed, unless it was removed: create another job to change it. `fixed` makes the rules of this.
    """

    ANY_TIME = auto()
    """Whether the job runs or not."""
    WHILE_SUSPENDED = auto()
    """How the job is run; read at the driver's next start."""
    WITH_RENEWAL = auto()
    """While suspended, and only together with runtimeRef.renewOnResume."""


@dataclass(frozen=True, slots=True)
class FormerDefault:
    """Marks a field that has no default any more. Stored jobs have the `value` that the API server filled in.

    A started job may drop it: a PUT of its manifest, which never had the field, does.
    """

    value: bool


@dataclass(frozen=True, slots=True)
class Removed:
    """Marks a field that was removed, or with `values` the values that were. `cure` says what to do instead.

    A manifest with it is refused. A stored job with it keeps running, and may drop it at any time.
    """

    cure: str
    values: tuple[str, ...] = ()

    def refuses(self, value: Any) -> bool:
        """Returns whether a manifest that gives the field this value is refused."""
        return value is not None and (not self.values or value in self.values)

    @property
    def message(self) -> str:
        """Says what was removed, and the cure."""
        subject = f"{' and '.join(self.values)} " if self.values else ""
        return f"{subject}{'were' if len(self.values) > 1 else 'was'} removed: {self.cure}"

    def to_cel(self) -> dict[str, Any]:
        """Returns an item of the field's own x-kubernetes-validations."""
        allowed = f"!(self in {[*self.values]})" if self.values else "false"
        return {"rule": allowed, "message": self.message, "reason": FieldError.FORBIDDEN.value}


def removed(info: FieldInfo) -> Removed | None:
    """Returns the mark of a removed field or of a field with removed values; None for any other."""
    return next((part for part in info.metadata if isinstance(part, Removed)), None)


class FieldError(StrEnum):
    """Kinds of field error of the API server."""

    INVALID = "FieldValueInvalid"
    FORBIDDEN = "FieldValueForbidden"
    REQUIRED = "FieldValueRequired"


@dataclass(frozen=True, slots=True)
class Rule:
    """`holds` is true of every acceptable object. `field` is the path of what to change, relative to the object with the rule.

    `closer` gives the message for one object (as JSON) that breaks it, where Python can say more than one text for all. Jobs that break a
    `new_only` rule may have been stored before there was one: manifests are refused, but stored objects are still read. The API server also
    accepts a stored value that an update doesn't change, if the rule is about that value's own object.
    """

    holds: Expression
    message: str
    field: str
    error: FieldError = FieldError.INVALID
    closer: Callable[[Mapping[str, Any]], str] | None = None
    new_only: bool = False

    def broken_by(self, value: Mapping[str, Any]) -> dict[str, str]:
        """Returns the field and message for an object that breaks the rule."""
        return {"field": self.field, "message": self.closer(value) if self.closer else self.message}

    def to_cel(self) -> dict[str, Any]:
        """Returns an item of x-kubernetes-validations."""
        return validation(self.holds.cel, self.message, self.field, self.error)


def validation(cel: str, message: str, field: str, error: FieldError) -> dict[str, Any]:
    """Returns an item of x-kubernetes-validations; `field`, which the API server reports, is relative to the rule's place."""
    while cel.startswith("(") and cel.endswith(")") and _encloses(cel):
        cel = cel[1:-1]
    return {"rule": cel, "message": message, "fieldPath": f".{field}", "reason": error.value}


def _encloses(cel: str) -> bool:
    """Whether the first parenthesis is closed by the last one. Our rules hold no parenthesis in a string."""
    depth = 0
    for position, character in enumerate(cel):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return position == len(cel) - 1
    return False
