"""How a driver asks for the number of its start, and what it says if nobody answers. Pure."""

from __future__ import annotations

import re

# The exit status of a driver and its container that got no answer from the API server (EX_TEMPFAIL of sysexits.h). The last line of its
# output then says why, after UNANSWERED.
UNANSWERED_EXIT_CODE = 75
UNANSWERED = "no answer from the API server"

# At most 15 digits, so that every number stays within its field's bounds.
_LEAST = re.compile(r"-([0-9]{1,15})$")


def incarnation_request(token: str, least: int) -> str:
    """Returns the random `token` with the least number that the start can use.

    The number is part of the token, not a field of its own: a driver may be newer than the CRDs, and the API server refuses a status with a
    field that they lack.
    """
    return f"{token}-{least}"


def least_number(request: str) -> int:
    """Returns the least number that a request asks for; 0 if it names none, like those of drivers up to 0.2.0."""
    match = _LEAST.search(request)
    return int(match[1]) if match else 0
