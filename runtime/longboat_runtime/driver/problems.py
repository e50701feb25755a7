"""Problems that a person should know of, while they last."""

from __future__ import annotations

from longboat_crds.reasons import Reason
from longboat_crds.status import Problem

# `status.problem` has room for one: the first of these that there is.
_FOREMOST_FIRST = (
    Reason.CHECKPOINT_VOLUME_FULL,
    Reason.STAGE_STUCK,
    Reason.TRAINER_LOST,
    Reason.NO_ENGINES,
    Reason.NO_GRADERS,
    Reason.ENGINE_REFUSED,
    Reason.CHECKPOINT_CORRUPT,
    Reason.LOSS_NOT_FINITE,
    Reason.GRADER_ERRORS,
    Reason.LENGTH_BIAS,
)
_MESSAGE_LIMIT = 4096


class Problems:
    """None of these is fatal: the job goes on, and each goes away when its cause does."""

    def __init__(self) -> None:
        self._problems: dict[Reason, Problem] = {}

    def put(self, reason: Reason, field: str | None, message: str) -> None:
        """There is such a problem, with this message."""
        self._problems[reason] = Problem(reason=reason, field=field, message=message[:_MESSAGE_LIMIT])

    def set(self, reason: Reason, field: str | None, message: str, present: bool) -> None:
        """Puts or clears it."""
        if present:
            self.put(reason, field, message)
        else:
            self.clear(reason)

    def get(self, reason: Reason) -> Problem | None:
        """The problem, if there is such a one."""
        return self._problems.get(reason)

    def clear(self, reason: Reason) -> None:
        """The problem is gone."""
        self._problems.pop(reason, None)

    @property
    def foremost(self) -> Problem | None:
        return next((self._problems[reason] for reason in _FOREMOST_FIRST if reason in self._problems), None)
