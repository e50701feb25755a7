"""Labels and annotations that a job, or a runtime template, gives to all objects of the job. Pure."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from longboat_crds.base import GROUP
from longboat_crds.expressions import (
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

# Kubernetes' own rules: names are at most 63 characters long, before them may stand a DNS subdomain and a slash.
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

    Rule: those by which the operator and Kubernetes tell objects apart are theirs, and any other has the form of a qualified name.
    """
    belong = (
        f"keys that begin with {GROUP}/ or kubernetes.io/, and {MANAGED_BY}, belong to the operator and to Kubernetes: remove them, or "
        "choose a prefix of your own"
    )
    form = (
        "a key is a name of at most 63 letters, digits, '-', '_' and '.', which begins and ends with a letter or digit; before it may stand "
        "a lower-case domain and a '/', as in example.com/cost-center"
    )

    def reserved(value: Mapping[str, Any]) -> str:
        return _naming(value[field], _RESERVED.evaluate, belong)

    def malformed(value: Mapping[str, Any]) -> str:
        return _naming(value[field], lambda scope: not _WELL_FORMED.evaluate(scope), form)

    return (
        Rule(
            if_present(field, lambda _: every(field, "k", negation(_RESERVED))),
            belong,
            field,
            FieldError.FORBIDDEN,
            closer=reserved,
        ),
        Rule(if_present(field, lambda _: every(field, "k", _WELL_FORMED)), form, field, closer=malformed),
    )


def _naming(values: Mapping[str, str], is_wrong: Any, message: str) -> str:
    key = next(key for key in values if is_wrong({"k": key}))
    return f"{key!r} can't be given: {message}"


KEY_RULES = (*key_rules("labels"), *key_rules("annotations"))
