"""Admission policies: what neither RBAC nor a schema can express about an RLJob. Pure.

RBAC can grant a driver only the whole status of its job; the first policy limits it to the driver's own fields. CEL in a
CustomResourceDefinition can't compare the keys of objects without a schema; the second policy compares those that are fixed.
"""

from typing import Any

from longboat_crds.base import GROUP, VERSION
from longboat_crds.status import OPERATOR_FIELDS

DRIVER_STATUS = "longboat-driver-status"
FIXED_PARAMETERS = "longboat-fixed-parameters"

_OWN_ACCOUNT = "'system:serviceaccount:' + request.namespace + ':' + object.metadata.name + '-driver'"
_NEW = "object.?status.?training.?incarnation"
_OLD = "oldObject.?status.?training.?incarnation"
_GRANTED = "oldObject.?status.?allocation.?incarnation.?number"
_STARTED = "has(oldObject.status) && has(oldObject.status.startTime)"


def policies() -> dict[str, list[dict[str, Any]]]:
    """Returns each policy with its binding, by name."""
    return {
        DRIVER_STATUS: _policy(
            DRIVER_STATUS,
            "rljobs/status",
            "request.userInfo.username.startsWith('system:serviceaccount:') && "
            "request.userInfo.username.endsWith('-driver')",
            [
                {
                    "expression": f"request.userInfo.username == {_OWN_ACCOUNT}",
                    "message": "a driver's account writes the status of its own job only",
                    "reason": "Forbidden",
                },
                *[_unchanged(field) for field in sorted(OPERATOR_FIELDS)],
                {
                    "expression": f"!{_OLD}.hasValue() || {_NEW}.orValue(-1) >= {_OLD}.orValue(0)",
                    "message": "status.training.incarnation is lower than the one stored: a newer driver runs this job",
                    "reason": "Forbidden",
                },
                {
                    "expression": f"{_NEW} == {_OLD} || {_NEW}.orValue(0) <= {_GRANTED}.orValue(0)",
                    "message": "status.training.incarnation is higher than status.allocation.incarnation.number",
                    "reason": "Forbidden",
                },
            ],
        ),
        FIXED_PARAMETERS: _policy(
            FIXED_PARAMETERS,
            "rljobs",
            _STARTED,
            [
                _fixed("spec.rewards", "object.spec.rewards == oldObject.spec.rewards"),
                _fixed(
                    "spec.dataset.reasoningGym",
                    "object.spec.dataset.?reasoningGym == oldObject.spec.dataset.?reasoningGym",
                ),
            ],
        ),
    }


def _unchanged(field: str) -> dict[str, Any]:
    """Returns a validation: the operator's field has the same value as before, or is still absent."""
    return {
        "expression": f"object.?status.?{field} == oldObject.?status.?{field}",
        "message": f"status.{field} belongs to the operator",
        "reason": "Forbidden",
    }


def _fixed(path: str, expression: str) -> dict[str, Any]:
    message = f"{path} is fixed once the job has started: create another job to change it"
    return {"expression": expression, "message": message, "reason": "Forbidden"}


def _policy(name: str, resource: str, condition: str, validations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {
                    "resourceRules": [
                        {
                            "apiGroups": [GROUP],
                            "apiVersions": [VERSION],
                            "operations": ["UPDATE"],
                            "resources": [resource],
                        }
                    ]
                },
                "matchConditions": [{"name": "subject", "expression": condition}],
                "validations": validations,
            },
        },
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        },
    ]
