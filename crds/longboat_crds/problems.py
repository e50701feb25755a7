"""Describes what is wrong with a job, for people: reason, field of the spec and cure. Pure."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from longboat_crds.status import Problem


class SpecProblem(Exception):
    """A setting of the job or its surroundings that no code can cure.

    `reason` is one CamelCase word for machines (`longboat_crds.reasons.Reason` lists them), `field` the path of the spec
    field to change, `message` says what is wrong and what to do. `fatal` means that no restart can help: the job fails.
    """

    def __init__(self, reason: str, field: str | None, message: str, fatal: bool = True) -> None:
        # All arguments go to Exception so that the error survives pickling, which is how actors hand it on.
        super().__init__(reason, field, message, fatal)
        self.reason = reason
        self.field = field
        self.message = message
        self.fatal = fatal

    def __str__(self) -> str:
        return f"{self.reason}: {self.field}: {self.message}" if self.field else f"{self.reason}: {self.message}"

    @property
    def status(self) -> Problem:
        """The form it takes in the job's status (a message there has at most 4096 characters)."""
        # Only here: graders raise SpecProblem too, and every one of their forks would pay for pydantic.
        from longboat_crds.status import Problem

        return Problem(reason=self.reason, field=self.field, message=self.message[:4096], fatal=self.fatal)


def suggestion(name: str, available: Iterable[str]) -> str:
    """Returns ` Did you mean X?` with the closest of the available names; empty if none is close."""
    # Imported only here: a grader that finds its function needn't hold it in memory.
    import difflib

    close = difflib.get_close_matches(name, list(available), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def spec_problem_in(error: BaseException) -> SpecProblem | None:
    """Returns `error` if it is a SpecProblem, else one among its causes, contexts, Ray's wrapped causes and grouped errors, else None."""
    pending: list[BaseException] = [error]
    visited: set[int] = set()
    while pending:
        current = pending.pop()
        if id(current) in visited:
            continue
        visited.add(id(current))
        if isinstance(current, SpecProblem):
            # An error of Ray's has the type of its cause, too, but says a whole traceback.
            cause = getattr(current, "cause", None)
            return cause if isinstance(cause, SpecProblem) else current
        causes = (current.__cause__, current.__context__, getattr(current, "cause", None))
        pending += [cause for cause in causes if isinstance(cause, BaseException)]
        if isinstance(current, BaseExceptionGroup):
            pending += current.exceptions
    return None
