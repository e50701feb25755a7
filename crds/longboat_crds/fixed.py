"""Derives from the marks of fields which of them are fixed once a job has started. Pure.

A field is free (but rounds.steps can only be raised), changeable only while the job is suspended (how the job runs), or then only with
renewOnResume (the runtime template). Without a mark it is fixed: what is learned, from what, and where the results go. A job has started
when status.startTime is set.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from pydantic.fields import FieldInfo

from longboat_crds.base import READER_DEFAULT, ApiModel
from longboat_crds.job import RLJobSpec
from longboat_crds.rules import Changeable, FieldError, FormerDefault, removed, validation


def section(info: FieldInfo) -> type[ApiModel] | None:
    """Returns the model of a field that is an object of our own, and always there; None for any other field."""
    kind = info.annotation
    return kind if isinstance(kind, type) and issubclass(kind, ApiModel) else None


def mark(info: FieldInfo) -> Changeable | None:
    """Returns the mark that says when the field may change; None: it has none."""
    return next((part for part in info.metadata if isinstance(part, Changeable)), None)


def marks(model: type[ApiModel], above: str = "") -> Iterator[tuple[str, Changeable | None]]:
    """Yields each path and its mark, which is for all that is below the path. Objects without any mark in them are one path.

    Skips removed fields: a job may drop them at any time, and their own rule refuses to set them.
    """
    for name, info in model.model_fields.items():
        removal = removed(info)
        if removal is not None and not removal.values:
            continue
        path, within = f"{above}{info.alias or name}", section(info)
        if mark(info) is None and within is not None:
            parts = list(marks(within, f"{path}."))
            if any(marked for _, marked in parts):
                yield from parts
                continue
        yield path, mark(info)


def _marked(with_: Changeable | None) -> tuple[str, ...]:
    return tuple(sorted(path for path, field_mark in marks(RLJobSpec) if field_mark is with_))


FREE = _marked(Changeable.ANY_TIME)
WHILE_SUSPENDED = _marked(Changeable.WHILE_SUSPENDED)
WITH_RENEWAL = _marked(Changeable.WITH_RENEWAL)
FIXED = _marked(None)

_NOT_STARTED = "!has(oldSelf.status) || !has(oldSelf.status.startTime)"
_SUSPENDED = "(has(oldSelf.status.phase) && oldSelf.status.phase == 'Suspended')"


def transition_rules() -> list[dict[str, Any]]:
    """Returns the items of x-kubernetes-validations at the root of an RLJob; silent at creation and until the job has started."""
    return [
        *_unchanged(FIXED, "", "is fixed once the job has started: create another job to change it"),
        *_unchanged(
            WHILE_SUSPENDED,
            f" || {_SUSPENDED}",
            "can be changed only while the job is suspended: set spec.suspend and wait for phase Suspended",
        ),
        *_unchanged(
            WITH_RENEWAL,
            f" || ({_SUSPENDED} && self.spec.runtimeRef.renewOnResume)",
            "can be changed only while the job is suspended and renewOnResume is true",
        ),
        validation(
            f"{_NOT_STARTED} || self.spec.rounds.steps >= oldSelf.spec.rounds.steps",
            "can only be raised once the job has started; to end it sooner, suspend it or create another job",
            "spec.rounds.steps",
            FieldError.FORBIDDEN,
        ),
        validation(
            f"{_NOT_STARTED} || !has(oldSelf.status.completionTime) || "
            "self.spec.rounds.steps == oldSelf.spec.rounds.steps",
            "can't be changed once the job has finished: create another job that resumes from its claim",
            "spec.rounds.steps",
            FieldError.FORBIDDEN,
        ),
    ]


def _unchanged(paths: Iterable[str], unless: str, message: str) -> list[dict[str, Any]]:
    return [
        validation(f"{_NOT_STARTED} || {_same(path)}{unless}", message, f"spec.{path}", FieldError.FORBIDDEN)
        for path in paths
    ]


def _same(path: str) -> str:
    """Returns the CEL text that requires the value at a path of `spec` to be unchanged, or to be still unset (see `FormerDefault`)."""
    new, old = f"self.spec.{path}", f"oldSelf.spec.{path}"
    info = _field(path)
    if _always_present(info):
        return f"{new} == {old}"
    former = next((part for part in info.metadata if isinstance(part, FormerDefault)), None)
    unset = f"!has({old})" + (f" || {old} == {str(former.value).lower()}" if former else "")
    return f"(has({new}) ? has({old}) && {new} == {old} : {unset})"


def _field(path: str) -> FieldInfo:
    """Returns the last field of a path; those on the way to it are always there (`section`)."""
    model: type[ApiModel] = RLJobSpec
    for key in path.split("."):
        info = next(info for name, info in model.model_fields.items() if key in (info.alias, name))
        model = section(info) or model
    return info


def _always_present(info: FieldInfo) -> bool:
    """Whether a field is required, or the API server fills in a default."""
    extra = info.json_schema_extra
    filled_in = not (isinstance(extra, dict) and READER_DEFAULT in extra)
    return info.is_required() or (filled_in and info.get_default(call_default_factory=True) is not None)
