"""Every condition type and reason that a user can meet is explained."""

import re

from longboat_crds.explanations import CONDITION_MEANINGS, EXPLANATIONS, explain
from longboat_crds.reasons import ConditionType, Reason, ReasonGroup
from longboat_crds.status import Condition, Problem


def test_every_type_and_reason_is_explained() -> None:
    assert set(CONDITION_MEANINGS) == set(ConditionType)
    assert set(EXPLANATIONS) == set(Reason)


def test_everything_that_can_go_wrong_by_configuration_has_a_cure() -> None:
    assert not [r for r, e in EXPLANATIONS.items() if e.group is ReasonGroup.CONFIGURATION and not e.cure]


def test_every_reason_stands_in_a_condition_and_every_condition_has_a_reason() -> None:
    assert all(e.conditions for e in EXPLANATIONS.values())
    assert {c for e in EXPLANATIONS.values() for c in e.conditions} == set(ConditionType)


def test_reasons_fit_the_schema() -> None:
    for model, name in ((Condition, "reason"), (Problem, "reason")):
        schema = model.model_json_schema()["properties"][name]
        assert all(re.search(schema["pattern"], r) and len(r) <= schema["maxLength"] for r in Reason)


def test_a_reason_of_another_version_is_unknown_not_an_error() -> None:
    assert explain("MadeUpLater") is None
    assert explain("OutOfMemory") is EXPLANATIONS[Reason.OUT_OF_MEMORY]
