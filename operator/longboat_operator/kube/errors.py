"""The API server's rejections and its silences, as exceptions. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FieldCause:
    """One field the server objects to."""

    field: str
    message: str


class KubeError(Exception):
    """Anything that keeps a request from succeeding."""

    retry_after_seconds: float | None = None


class TransportError(KubeError):
    """Says that no readable answer came: the connection failed, or the time ran out. A write may or may not have happened."""


class QuietError(TransportError):
    """An open stream said nothing for so long that its connection was given up. Not a fault: there may be nothing to say."""


class ApiError(KubeError):
    """An answer that says no."""

    def __init__(self, code: int, reason: str, message: str, causes: tuple[FieldCause, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.causes = causes


class BadRequestError(ApiError):
    """400: the request itself is malformed."""


class UnauthorizedError(ApiError):
    """401: the credentials are not accepted (any more)."""


class ForbiddenError(ApiError):
    """403: RBAC, quota or an admission policy says no."""


class NotFoundError(ApiError):
    """404: the object, its namespace or its kind doesn't exist."""


class ConflictError(ApiError):
    """409: a precondition, a resourceVersion or a field's owner forbids it."""


class AlreadyExistsError(ConflictError):
    """409 to a create: the name is taken."""


class GoneError(ApiError):
    """The server doesn't know that resourceVersion: it is compacted away (410), or not reached yet, as after a restore. List again."""


class InvalidError(ApiError):
    """422: fields break the schema; `causes` names them."""


class TooManyRequestsError(ApiError):
    """429: later; `retry_after_seconds` says when, if the server does."""


class ServerError(ApiError):
    """5xx: the server itself failed."""


_BY_CODE: dict[int, type[ApiError]] = {
    400: BadRequestError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    422: InvalidError,
    429: TooManyRequestsError,
}


def is_rejection(error: KubeError) -> bool:
    """Whether asking again unchanged is pointless for now: the server understood and said no."""
    return isinstance(error, ApiError) and not isinstance(error, (ServerError, TooManyRequestsError, UnauthorizedError))


def error_from_status(status: dict[str, Any]) -> ApiError:
    """Returns the exception for a `metav1.Status`."""
    code = int(status.get("code") or 500)
    reason = status.get("reason") or ""
    details = status.get("details") or {}
    causes = tuple(
        FieldCause(cause.get("field", ""), cause.get("message", "")) for cause in details.get("causes") or ()
    )
    unreached = any(cause.get("reason") == "ResourceVersionTooLarge" for cause in details.get("causes") or ())
    kind = GoneError if unreached else _BY_CODE.get(code, ServerError if code >= 500 else ApiError)
    if kind is ConflictError and reason == "AlreadyExists":
        kind = AlreadyExistsError
    error = kind(code, reason, status.get("message") or reason or f"HTTP {code}", causes)
    if details.get("retryAfterSeconds"):
        error.retry_after_seconds = float(details["retryAfterSeconds"])
    return error


def error_from_response(code: int, body: bytes, retry_after: str | None = None) -> ApiError:
    """Returns the exception for an answer with an HTTP status of 400 or more, even if its body is no `Status`."""
    try:
        status = json.loads(body)
    except ValueError:
        status = None
    if not isinstance(status, dict) or status.get("kind") != "Status":
        status = {"message": body[:512].decode(errors="replace").strip()}
    error = error_from_status({**status, "code": code})
    if retry_after and retry_after.isdigit():
        error.retry_after_seconds = float(retry_after)
    return error
