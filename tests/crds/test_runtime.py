"""Runtime templates are refused with the field and the cure."""

from typing import Any

import pytest

from longboat_crds.load import ApiError, load
from longboat_crds.yaml_text import dump


def runtime(**spec: Any) -> str:
    body = {"apiVersion": "longboat.dev/v1alpha1", "kind": "RLRuntime", "metadata": {"name": "cpu"}}
    return dump({**body, "spec": {"image": "longboat-runtime:1", **spec}})


@pytest.mark.parametrize(
    ("spec", "field", "cure"),
    [
        ({"labels": {"longboat.dev/job": "x"}}, "spec.labels", "remove them, or choose a prefix of your own"),
        ({"annotations": {"kubernetes.io/x": "x"}}, "spec.annotations", "remove them, or choose a prefix of your own"),
        ({"labels": {"a b": "x"}}, "spec.labels", "'a b' can't be given: a key is a name of at most 63 letters"),
        ({"labels": {"team": 7}}, "spec.labels.team", "put it in quotes"),
        (
            {"driverServiceAccount": {"annotations": {"longboat.dev/x": "x"}}},
            "spec.driverServiceAccount.annotations",
            "choose a prefix of your own",
        ),
        (
            {"driverServiceAccount": {"imagePullSecrets": [{"name": "a"}, {"name": "a"}]}},
            "spec.driverServiceAccount.imagePullSecrets[1]",
            "given twice",
        ),
        ({"driverServiceAccount": {"name": "x"}}, "spec.driverServiceAccount.name", "no such field; known fields are"),
        ({"userIds": "Mine"}, "spec.userIds", "must be 'Fixed' or 'Platform', not 'Mine'"),
    ],
)
def test_what_is_wrong_is_told_with_field_and_cure(spec: dict[str, Any], field: str, cure: str) -> None:
    with pytest.raises(ApiError) as caught:
        load(runtime(**spec))
    (problem,) = caught.value.problems
    assert problem.startswith(f"{field}: ")
    assert cure in problem


def test_all_of_it_is_optional() -> None:
    account = {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/x"}, "imagePullSecrets": []}
    load(runtime())
    load(runtime(labels={"team": "a"}, annotations={}, driverServiceAccount=account, userIds="Platform"))
