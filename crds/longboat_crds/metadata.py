"""Labels and annotations that a job or a runtime template gives to all objects of the job. Pure."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from longboat_crds.base import GROUP
from longboat_crds.expressions import (
    Expression,
    constant,
    either,
    equals,
    every,
    if_present,
    item,
    matches,
    negation,
    starts_with,
)
from longboat_crds.rules import FieldError, Rule

MANAGED_BY = "app.kubernetes.io/managed-by"

# Kubernetes' own rules: a name has at most 63 characters, and may follow a DNS subdomain and a slash.
_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_PREFIX = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/"
_KEY = item("k")
_RESERVED = either(
    starts_with(_KEY, f"{GROUP}/"), starts_with(_KEY, "kubernetes.io/"), equals(_KEY, constant(MANAGED_BY))
)
_WELL_FORMED = matches(_KEY, f"^({_PREFIX})?{_NAME}$")

LabelValue = Annotated[str, Field(pattern=rf"^({_NAME})?$", max_length=63)]
Labels = Annotated[dict[str, LabelValue], Field(max_length=32)]
Annotations = Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=32)]


def key_rules(field: str) -> tuple[Rule, ...]:
    """Returns the rules for the keys of a field with labels or annotations.

    Rule: keys by which the operator and Kubernetes tell objects apart are theirs; any other has the form of a qualified name.
    """
    return (
        _rule(
            field,
            negation(_RESERVED),
            f"keys that begin with {GROUP}/ or kubernetes.io/, and {MANAGED_BY}, are reserved for the operator and Kubernetes: remove "
            "them, or choose a prefix of your own",
            FieldError.FORBIDDEN,
        ),
        _rule(
            field,
            _WELL_FORMED,
            "a key is a name of at most 63 letters, digits, '-', '_' and '.', which begins and ends with a letter or digit; a lower-case "
            "domain and a '/' may precede it, as in example.com/cost-center",
            FieldError.INVALID,
        ),
    )


def _rule(field: str, holds: Expression, message: str, error: FieldError) -> Rule:
    def closer(value: Mapping[str, Any]) -> str:
        return f"{next(key for key in value[field] if not holds.evaluate({'k': key}))!r} can't be given: {message}"

    return Rule(if_present(field, lambda _: every(field, "k", holds)), message, field, error, closer=closer)


KEY_RULES = (*key_rules("labels"), *key_rules("annotations"))
