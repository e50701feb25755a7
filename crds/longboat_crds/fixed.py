"""Which fields of `spec` are fixed once a job has started. Pure.

A field is free (a change takes effect at once), changeable only while the job is suspended (how the job runs; read at the
driver's next start), or fixed (what is learned, from what, and where the results go). A job has started when
status.startTime is set.
"""

from collections.abc import Iterable
from typing import Any

from longboat_crds.base import ApiModel
from longboat_crds.job import RLJobSpec
from longboat_crds.rules import Refusal, validation

FREE = (
    "checkpoint.everySteps",
    "checkpoint.graceSeconds",
    "checkpoint.keep",
    "checkpoint.reclaimPolicy",
    "failurePolicy",
    "rollout.replicas",
    "rounds.steps",  # upwards, until the job has succeeded
    "runtimeRef.renewOnResume",
    "suspend",
    "ttlSecondsAfterFinished",
)
WHILE_SUSPENDED = (
    "checkpoint.export",
    "dataset.evaluation",
    "rewardPool",
    "rollout.enforceEager",
    "rollout.enginesPerPod",
    "rollout.kvCache",
    "rollout.maxSequences",
    "rollout.tensorParallel",
    "rounds.auditEvery",
    "rounds.maxLengthBias",
    "rounds.stageDeadlineSeconds",
    "trainer.deterministic",
    "trainer.gradientCheckpointing",
    "trainer.maxSkippedSteps",
    "trainer.maxTokensPerBin",
)
WITH_RENEWAL = ("runtimeRef.kind", "runtimeRef.name")
FIXED = (
    "algorithm",
    "checkpoint.claimName",
    "checkpoint.resumeFrom",
    "checkpoint.volume",
    "dataset.columns",
    "dataset.files",
    "dataset.promptTemplate",
    "dataset.reasoningGym",
    "dataset.shuffle",
    "dataset.shuffleSeed",
    "dataset.tooLongPrompts",
    "model",
    "rewards",
    "rollout.sampling",
    "rounds.maxStaleness",
    "rounds.policy",
    "rounds.promptOvercommit",
    "rounds.promptOvercommitMode",
    "rounds.promptsPerRound",
    "rounds.quotas",
    "rounds.sampleOvercommit",
    "rounds.seed",
    "trainer.minibatches",
    "trainer.optimizer",
    "trainer.replicas",
)

_NOT_STARTED = "!has(oldSelf.status) || !has(oldSelf.status.startTime)"
_SUSPENDED = "(has(oldSelf.status.phase) && oldSelf.status.phase == 'Suspended')"


def transition_rules() -> list[dict[str, Any]]:
    """Items of x-kubernetes-validations at the root of an RLJob; silent at creation and until the job has started."""
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
            Refusal.FORBIDDEN,
        ),
        validation(
            f"{_NOT_STARTED} || !has(oldSelf.status.completionTime) || "
            "self.spec.rounds.steps == oldSelf.spec.rounds.steps",
            "can't be changed once the job has finished: create another job that resumes from its claim",
            "spec.rounds.steps",
            Refusal.FORBIDDEN,
        ),
    ]


def _unchanged(paths: Iterable[str], unless: str, message: str) -> list[dict[str, Any]]:
    return [
        validation(f"{_NOT_STARTED} || {_same(path)}{unless}", message, f"spec.{path}", Refusal.FORBIDDEN)
        for path in paths
    ]


def _same(path: str) -> str:
    """CEL: the value at a path of `spec` is unchanged, or is still unset."""
    new, old = f"self.spec.{path}", f"oldSelf.spec.{path}"
    if _always_present(path):
        return f"{new} == {old}"
    return f"(has({new}) ? has({old}) && {new} == {old} : !has({old}))"


def _always_present(path: str) -> bool:
    """Whether the last field of a path is required or has a default; for every path in our lists, those above it do."""
    model: type[ApiModel] = RLJobSpec
    for key in path.split("."):
        info = next(info for name, info in model.model_fields.items() if key in (info.alias, name))
        if isinstance(info.annotation, type) and issubclass(info.annotation, ApiModel):
            model = info.annotation
    return info.is_required() or info.get_default(call_default_factory=True) is not None
