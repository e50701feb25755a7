"""Builds the errors of OpenAI's API with which the recorder refuses requests. Pure."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

# Codes by which clients know the cause.
CONTEXT_FULL = "context_length_exceeded"
BUDGET_SPENT = "episode_budget_exceeded"


class Refused(Exception):
    """Refuses a request, with an HTTP status. `param` is the key of the request that is wrong, `code` names the cause."""

    def __init__(
        self, message: str, *, code: str, param: str | None = None, status: HTTPStatus = HTTPStatus.BAD_REQUEST
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body of the answer."""
        kind = "invalid_request_error" if self.status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def invalid(param: str, message: str) -> Refused:
    """Returns the refusal of a key's value. `message` is a sentence that begins with the key."""
    return Refused(f"`{param}` {message}", code="invalid_value", param=param)
