"""Tells problems of the checkpoint volume from other failures. Pure."""

from __future__ import annotations

import errno

from longboat_crds.problems import SpecProblem, spec_problem_in
from longboat_crds.reasons import Reason

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)


def volume_problem(error: BaseException, *, fatal: bool = True) -> SpecProblem | None:
    """Returns the problem to report if `error` means that the volume is full or can't be written; None for any other error.

    `fatal` is whether a full volume ends the job, which it doesn't if there is another try. A SpecProblem of the volume that
    caused `error` is returned as it is.
    """
    problem = spec_problem_in(error)
    if problem is not None:
        volume_reasons = (Reason.CHECKPOINT_VOLUME_FULL, Reason.CHECKPOINT_VOLUME_NOT_WRITABLE)
        return problem if problem.reason in volume_reasons else None
    if not isinstance(error, OSError):
        return None
    if error.errno in _FULL:
        return SpecProblem(
            Reason.CHECKPOINT_VOLUME_FULL,
            "spec.checkpoint.volume.size",
            "No space is left for a checkpoint; the newest complete one is untouched. Enlarge the claim, or lower "
            "checkpoint.keep.",
            fatal=fatal,
        )
    if error.errno in _NOT_WRITABLE:
        return SpecProblem(
            Reason.CHECKPOINT_VOLUME_NOT_WRITABLE,
            "spec.checkpoint.volume",
            f"The checkpoint volume can't be written ({error}). Make group 10001 its owner, or use a volume that "
            "honours fsGroup.",
        )
    return None


def volume_full(error: BaseException) -> SpecProblem | None:
    """Returns the problem if `error` means that no space is left; None for any other error."""
    problem = volume_problem(error)
    return problem if problem is not None and problem.reason == Reason.CHECKPOINT_VOLUME_FULL else None
