"""The policy for drivers guards exactly the operator's part of status. Its effect is tested in e2e/tests/api."""

import re

from longboat_crds.policies import DRIVER_STATUS, policies
from longboat_crds.status import DRIVER_FIELDS, RLJobStatus


def test_every_field_but_the_drivers_is_guarded() -> None:
    policy, binding = policies()[DRIVER_STATUS]
    messages = [validation["message"] for validation in policy["spec"]["validations"]]
    guarded = {match[1] for message in messages if (match := re.match(r"status\.(\w+) belongs", message))}
    fields = {info.alias or name for name, info in RLJobStatus.model_fields.items()}
    assert guarded == fields - DRIVER_FIELDS
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
