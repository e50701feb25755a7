"""`spec.checkpoint`: what survives pods, and where."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from longboat_crds.base import LIST_TYPE, READER_DEFAULT, ApiModel, Quantity, ReferenceName, Seconds
from longboat_crds.expressions import both, constant, either, equals, field, field_or, negation, present
from longboat_crds.rules import Changeable, FieldError, Rule

# How many exports of steps a job keeps unless it says otherwise.
KEPT_EXPORTS = 2


class AccessMode(StrEnum):
    """How the claim may be mounted. ReadWriteOnce pins driver and trainer pods to one node."""

    READ_WRITE_MANY = "ReadWriteMany"
    READ_WRITE_ONCE = "ReadWriteOnce"


class ReclaimPolicy(StrEnum):
    """What happens to the claim when the job is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class TrainingInput(StrEnum):
    """What a checkpoint holds digests of, beside the state itself."""

    MODEL = "Model"
    TOKENIZER = "Tokenizer"
    DATA = "Data"
    REWARDS = "Rewards"


class VolumeSpec(ApiModel):
    """The claim that the operator creates for the job (`NAME-checkpoint`)."""

    size: Quantity = Field(default="10Gi", description="Size of the claim.")
    storage_class_name: str | None = Field(
        default=None,
        max_length=253,
        description="Default: the cluster's default class; an empty string asks for no class.",
    )
    access_mode: AccessMode = AccessMode.READ_WRITE_MANY


class ResumeFrom(ApiModel):
    """Checkpoints of another job's claim, taken as the start of this one."""

    claim_name: ReferenceName = Field(description="The claim; it is mounted read-only.")
    step: int | None = Field(default=None, ge=0, le=10_000_000, description="Default: the newest complete one.")


class CheckpointSpec(ApiModel):
    """Transactional checkpoints of the state after a step."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            negation(both(present("claimName"), equals(field("reclaimPolicy"), constant(ReclaimPolicy.DELETE.value)))),
            "a claim given by claimName is never deleted: use Retain, or leave out claimName",
            "reclaimPolicy",
        ),
        Rule(
            either(
                negation(present("resumeFrom")),
                negation(present("claimName")),
                negation(equals(field("resumeFrom.claimName"), field("claimName"))),
            ),
            "a job resumes from its own claim automatically: leave out resumeFrom, or name another claim",
            "resumeFrom",
            FieldError.FORBIDDEN,
        ),
        Rule(
            negation(both(equals(field_or("adopt", False), constant(True)), present("claimName"))),
            "applies to NAME-checkpoint alone, not to a claim named by claimName: leave out adopt, or claimName",
            "adopt",
            FieldError.FORBIDDEN,
        ),
        Rule(
            either(present("exportEverySteps"), negation(present("keepExports"))),
            "says how many exports of exportEverySteps are kept: give that too, or leave keepExports out",
            "keepExports",
        ),
    )

    every_steps: Annotated[int, Changeable.ANY_TIME] = Field(
        default=10,
        ge=1,
        le=10_000_000,
        description="Steps from one checkpoint to the next; an edit takes effect from the current step on.",
    )
    keep: Annotated[int, Changeable.ANY_TIME] = Field(
        default=2,
        ge=1,
        le=1000,
        description="How many of the newest checkpoints to keep; an edit takes effect when the next one is saved.",
    )
    grace_seconds: Annotated[Seconds, Changeable.ANY_TIME] = Field(
        default=120,
        description="How long a suspension, or a drain of a driver or trainer pod's node, waits for a checkpoint: allow for two writes, "
        "since one may be under way already.",
    )
    reclaim_policy: Annotated[ReclaimPolicy, Changeable.ANY_TIME] = ReclaimPolicy.RETAIN
    volume: VolumeSpec = Field(default_factory=VolumeSpec)
    claim_name: ReferenceName | None = Field(
        default=None,
        description="An existing claim to use instead of `volume`; the operator never deletes it. If it is ReadWriteOnce, driver "
        "and trainer pods share a node.",
    )
    adopt: Annotated[bool, Changeable.ANY_TIME] = Field(
        default=False,
        description="Takes over the claim that a deleted job of the same name left (`NAME-checkpoint`), and resumes from its checkpoints. "
        "Without it such a job waits (`NameTaken`). Meant for GitOps tools, which recreate deleted jobs.",
        json_schema_extra={READER_DEFAULT: True},
    )
    resume_from: ResumeFrom | None = None
    accept_changes: Annotated[list[TrainingInput], Changeable.ANY_TIME] = Field(
        default_factory=list,
        max_length=4,
        description="Resume although these differ from those that the checkpoint was made with. A job that differs in others waits "
        "(`CheckpointMismatch`), and goes on once they are added here. `Tokenizer` includes the chat template.",
        json_schema_extra={READER_DEFAULT: True, LIST_TYPE: "set"},
    )
    export: Annotated[bool, Changeable.WHILE_SUSPENDED] = Field(
        default=True, description="Write a Hugging Face directory (`export/`) after the last step."
    )
    export_every_steps: Annotated[int | None, Changeable.WHILE_SUSPENDED] = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="Write a Hugging Face directory (`exports/step-00000010/`) every this many steps, but not after the last one if "
        "`export` writes one. The trainer waits for it. Default: none.",
    )
    keep_exports: Annotated[int | None, Changeable.WHILE_SUSPENDED] = Field(
        default=None,
        ge=1,
        le=1000,
        description=f"How many of the newest directories of exportEverySteps to keep. Default: {KEPT_EXPORTS}.",
    )
