"""Admission policies: what neither RBAC nor a schema can express about an RLJob and its objects. Pure.

RBAC can grant a driver only the whole status of its job; the first policy limits it to the driver's own fields. CEL in a
CustomResourceDefinition can't compare the keys of objects without a schema; the second policy compares those that are fixed. RBAC can't
limit a right to objects with some owner; the third policy limits what the operator may delete to objects of jobs.
"""

from typing import Any

from longboat_crds.base import GROUP, VERSION
from longboat_crds.status import OPERATOR_FIELDS

DRIVER_STATUS = "longboat-driver-status"
FIXED_PARAMETERS = "longboat-fixed-parameters"
OPERATOR_DELETES = "longboat-operator-deletes"

# The pod that a token is bound to (source: Kubernetes, "Managing Service Accounts", additional metadata in Pod bound tokens).
_POD_OF_TOKEN = "request.userInfo.?extra[?'authentication.kubernetes.io/pod-name'][?0].orValue('')"
_IS_DRIVER_POD = "variables.pod.matches('^' + object.metadata.name + '-driver-0-a[0-9]{1,9}$')"
_RECORDS = "oldObject.?status.?roles.?driver"
_NUMBER = "object.?status.?training.?incarnation"
_OLD_NUMBER = "oldObject.?status.?training.?incarnation"
_STARTED = "has(oldObject.status) && has(oldObject.status.startTime)"

_VARIABLES = {
    "pod": _POD_OF_TOKEN,
    "attempt": f"{_IS_DRIVER_POD} ? int(variables.pod.substring(variables.pod.lastIndexOf('-a') + 2)) : -1",
    "granted": "oldObject.?status.?allocation.?incarnation.?number.orValue(0)",
    # Whether the writer claims to be the driver whose number was granted last.
    "isCurrent": f"{_NUMBER}.orValue(-1) == variables.granted",
}


def policies(operators: str = "[]") -> dict[str, list[dict[str, Any]]]:
    """Returns each policy with its binding, by name. `operators` is the CEL list of the usernames of all operators' ServiceAccounts."""
    return {
        DRIVER_STATUS: _policy(
            DRIVER_STATUS,
            _rule(GROUP, VERSION, "UPDATE", "rljobs/status"),
            "request.userInfo.username.startsWith('system:serviceaccount:') && "
            f"!(request.userInfo.username in {operators})",
            [*_writer(), *[_unchanged(field) for field in sorted(OPERATOR_FIELDS)], *_numbers()],
            _VARIABLES,
        ),
        FIXED_PARAMETERS: _policy(
            FIXED_PARAMETERS,
            _rule(GROUP, VERSION, "UPDATE", "rljobs"),
            _STARTED,
            [
                _fixed("spec.rewards", "object.spec.rewards == oldObject.spec.rewards"),
                _fixed(
                    "spec.dataset.reasoningGym",
                    "object.spec.dataset.?reasoningGym == oldObject.spec.dataset.?reasoningGym",
                ),
            ],
        ),
        OPERATOR_DELETES: _policy(
            OPERATOR_DELETES,
            [*_rule("", "v1", "DELETE", "secrets"), *_rule("networking.k8s.io", "v1", "DELETE", "networkpolicies")],
            f"request.userInfo.username in {operators}",
            [
                _validation(
                    "oldObject.metadata.?ownerReferences.orValue([]).exists(o, o.?controller.orValue(false) && "
                    f"o.kind == 'RLJob' && o.apiVersion.startsWith('{GROUP}/'))",
                    "Longboat's operator deletes only what an RLJob controls",
                )
            ],
        ),
    }


def _writer() -> list[dict[str, Any]]:
    """Returns the validations of the writer.

    Rule: it is the job's own driver pod, and hasn't been replaced. It is known by the pod that its token is bound to, since several jobs
    may share an account.
    """
    return [
        _validation(
            "request.userInfo.username.startsWith('system:serviceaccount:' + request.namespace + ':') && variables.attempt >= 0",
            "of all ServiceAccounts only the operator's, and the one of the job's own driver pod with a token bound to it, write a job's "
            "status",
        ),
        _validation(
            f"variables.attempt < 0 || ({_RECORDS}.?pods.orValue([]).all(p, p.attempt <= variables.attempt) && "
            f"{_RECORDS}.?intact.orValue([]).all(p, p.attempt <= variables.attempt))",
            "a newer driver pod runs this job",
        ),
    ]


def _numbers() -> list[dict[str, Any]]:
    """Returns the validations of incarnation numbers.

    Rules: what a driver writes carries the number that was granted last. While it only asks for its number, it leaves progress and
    checkpoint unchanged. The checkpoint may become an older one only if the one shown isn't the current driver's own, since a driver that
    resumes may find that damaged.
    """
    checkpoint, shown = "object.status.checkpoint", "oldObject.?status.?checkpoint.?incarnation.orValue(0)"
    demands = [
        _validation(
            f"object.?status.?demand.?{part}.?incarnation.orValue(variables.granted) == variables.granted || "
            f"object.?status.?demand.?{part} == oldObject.?status.?demand.?{part}",
            f"status.demand.{part}.incarnation is not status.allocation.incarnation.number",
        )
        for part in ("rollout", "reward", "environment")
    ]
    return [
        _validation(
            f"!{_OLD_NUMBER}.hasValue() || {_NUMBER}.orValue(-1) >= {_OLD_NUMBER}.orValue(0)",
            "status.training.incarnation is lower than the one stored: a newer driver runs this job",
        ),
        _validation(
            "variables.isCurrent || object.?status.?training == oldObject.?status.?training",
            "status.training.incarnation is not status.allocation.incarnation.number",
        ),
        *demands,
        _validation(
            "object.?status.?checkpoint == oldObject.?status.?checkpoint || (variables.isCurrent && "
            f"(!has({checkpoint}) || {checkpoint}.incarnation <= variables.granted && "
            f"({checkpoint}.incarnation >= {shown} || {shown} < variables.granted)))",
            "status.checkpoint: only the driver of status.allocation.incarnation.number changes it, to a checkpoint of its own or the one "
            "that it resumed from",
        ),
        _validation(
            "!has(object.status) || !has(object.status.problem) || variables.isCurrent || "
            "object.?status.?problem == oldObject.?status.?problem",
            "status.problem: only the driver of status.allocation.incarnation.number reports one",
        ),
    ]


def _validation(expression: str, message: str) -> dict[str, Any]:
    return {"expression": expression, "message": message, "reason": "Forbidden"}


def _unchanged(field: str) -> dict[str, Any]:
    """Returns a validation: the operator's field has the same value as before, or is still absent."""
    return _validation(
        f"object.?status.?{field} == oldObject.?status.?{field}", f"status.{field} belongs to the operator"
    )


def _fixed(path: str, expression: str) -> dict[str, Any]:
    return _validation(expression, f"{path} is fixed once the job has started: create another job to change it")


def _rule(group: str, version: str, operation: str, resource: str) -> list[dict[str, Any]]:
    return [{"apiGroups": [group], "apiVersions": [version], "operations": [operation], "resources": [resource]}]


def _policy(
    name: str,
    rules: list[dict[str, Any]],
    condition: str,
    validations: list[dict[str, Any]],
    variables: dict[str, str] | None = None,
) -> list[dict[str, Any]]:
    named = [{"name": variable, "expression": expression} for variable, expression in (variables or {}).items()]
    return [
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": rules},
                "matchConditions": [{"name": "subject", "expression": condition}],
                **({"variables": named} if named else {}),
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
