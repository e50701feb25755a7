"""Keeps a job from resuming with other inputs than those of its checkpoint, until somebody accepts that."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

import structlog

from longboat_crds.checkpoint import TrainingInput
from longboat_crds.job import RLJobSpec
from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_crds.status import LINE_LENGTH, RESUMED_DIFFERENCES, ResumedStatus
from longboat_runtime.checkpoint.digests import Difference
from longboat_runtime.checkpoint.protocol import Manifest
from longboat_runtime.driver.context import Context
from longboat_runtime.driver.observer import Observer
from longboat_runtime.driver.resume import changed_fields
from longboat_runtime.status_fragment import Problems, StatusFragment

log = structlog.get_logger()

# The field of the problem if all differences can be accepted.
FIELD = "spec.checkpoint.acceptChanges"
# How many differences of each input a message names.
_MOST_NAMED = 10


class Changes(Observer):
    """Waits for differences to be accepted: of the inputs in `checkpoint.acceptChanges`.

    Where the spec can't be edited while the job runs, unaccepted differences end the run instead.
    """

    def __init__(self, context: Context) -> None:
        self._job, self._editable = context.job, context.broker.editable
        self._accepted = frozenset(context.job.spec.checkpoint.accept_changes)
        self._problems = Problems(context.news)
        self._edited = asyncio.Event()
        before = context.broker.previous.training
        self._resumed = (before.resumed if before else None) or ResumedStatus()

    async def edit(self, spec: RLJobSpec) -> None:
        self._accepted = frozenset(spec.checkpoint.accept_changes)
        self._edited.set()

    def status(self) -> StatusFragment:
        resumed = self._resumed if self._resumed.to_json() else None
        return StatusFragment({"resumed": resumed}, problems=self._problems.present)

    async def settle(self, differences: Sequence[Difference], saved: Manifest) -> None:
        """Reports differences from the checkpoint `saved` until all are accepted, and then that it resumes with them.

        Raises SpecProblem if nobody can accept them.
        """
        while waiting := unaccepted(differences, self._accepted):
            text = message(waiting, saved)
            field = FIELD if all(difference.acceptable for difference in waiting) else "spec.dataset"
            if not self._editable:
                raise SpecProblem(Reason.CHECKPOINT_MISMATCH, field, text)
            text = f"{text} {cure(waiting)}"
            log.warning("the job waits, since its inputs aren't those of the checkpoint", problem=text)
            self._problems.put(Reason.CHECKPOINT_MISMATCH, field, text)
            self._edited.clear()
            await self._edited.wait()
        self._problems.clear(Reason.CHECKPOINT_MISMATCH)
        for difference in differences:
            log.warning("resumes although an input isn't that of the checkpoint", difference=str(difference))
        accepted = _lines([*(self._resumed.accepted or ()), *map(str, differences)])
        fields = _lines(changed_fields(self._job, saved))
        self._resumed = ResumedStatus(accepted=accepted, spec=fields or self._resumed.spec)


def _lines(texts: Sequence[str]) -> list[str] | None:
    """Returns the last RESUMED_DIFFERENCES different texts as lines; None if there are none. Pure."""
    return [text[:LINE_LENGTH] for text in dict.fromkeys(texts)][-RESUMED_DIFFERENCES:] or None


def unaccepted(differences: Sequence[Difference], accepted: Collection[TrainingInput]) -> list[Difference]:
    """Returns the differences that keep a job from resuming: of inputs that aren't accepted, and any that can't be. Pure."""
    return [difference for difference in differences if not difference.acceptable or difference.input not in accepted]


def message(waiting: Sequence[Difference], saved: Manifest) -> str:
    """Says what differs, by input. Pure."""
    texts: dict[TrainingInput, list[str]] = {}
    for difference in waiting:
        texts.setdefault(difference.input, []).append(difference.text)
    named = [f"{name}: {', '.join(_shortened(own))}." for name, own in texts.items()]
    fixed = [difference.text for difference in waiting if not difference.acceptable]
    if fixed:
        named.append(f"This can't be accepted: {'; '.join(fixed)}.")
    return f"The checkpoint of step {saved.step} was made with other inputs. {' '.join(named)}"


def cure(waiting: Sequence[Difference]) -> str:
    """Says what can be done about differences in a job on Kubernetes. Pure."""
    restore = "restore what has changed, and suspend and resume the job"
    if not all(difference.acceptable for difference in waiting):
        return f"Nothing is trained: {restore}, or create another job."
    names = " and ".join(dict.fromkeys(difference.input for difference in waiting))
    return f"Nothing is trained. To resume all the same, add {names} to checkpoint.acceptChanges; or {restore}."


def _shortened(texts: Sequence[str]) -> list[str]:
    rest = len(texts) - _MOST_NAMED
    return [*texts[:_MOST_NAMED], f"and {rest} more"] if rest > 0 else [*texts]
