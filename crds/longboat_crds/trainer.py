"""`spec.trainer`: FSDP2 ranks and the optimizer."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from longboat_crds.base import READER_DEFAULT, ApiModel
from longboat_crds.expressions import at_most, constant, divides, field, field_or, product
from longboat_crds.rules import Changeable, FormerDefault, Rule

# The most ranks of one trainer, and so the most pods.
MAX_RANKS = 4096


class Schedule(StrEnum):
    """Course of the learning rate after the warm-up: constant, or falling towards 0, which the step after rounds.steps would have.

    When rounds.steps is raised, Linear and Cosine are stretched: each step from the next one on has the rate that it would have had
    if the job had been created with the new number, so the rate jumps up once. Steps that are done are not repeated.
    """

    CONSTANT = "Constant"
    LINEAR = "Linear"
    COSINE = "Cosine"


class StreamMode(StrEnum):
    """Whether the gradients of finished groups are computed while the round is open (Always), or all once it is closed (Never).

    Auto streams where trainers have GPUs and `deterministic` isn't in force; on CPUs engines and trainer would share cores. It doesn't
    where a step has several minibatches, or advantages compare with the whole step.
    """

    AUTO = "Auto"
    ALWAYS = "Always"
    NEVER = "Never"


class OptimizerSpec(ApiModel):
    """AdamW."""

    learning_rate: float = Field(default=1e-6, gt=0.0, le=1.0, description="Its peak, reached after the warm-up.")
    weight_decay: float = Field(default=0.0, ge=0.0, le=1.0, description="Decoupled weight decay.")
    beta1: float = Field(default=0.9, ge=0.0, lt=1.0, description="Decay of the mean of gradients.")
    beta2: float = Field(default=0.95, ge=0.0, lt=1.0, description="Decay of the mean of squared gradients.")
    epsilon: float = Field(default=1e-8, gt=0.0, le=1.0, description="Added to the denominator.")
    max_grad_norm: float = Field(default=1.0, gt=0.0, le=1e6, description="The gradient's norm is clipped to this.")
    warmup_steps: int = Field(
        default=0, ge=0, le=10_000_000, description="Steps over which the learning rate rises from 0."
    )
    schedule: Schedule = Schedule.CONSTANT


class TrainerSpec(ApiModel):
    """Trainer pods, and one FSDP2 rank for each of their devices."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            at_most(product(field("replicas"), field_or("devicesPerPod", 1)), constant(MAX_RANKS)),
            f"replicas x devicesPerPod is the number of ranks, at most {MAX_RANKS}: lower one of them",
            "devicesPerPod",
        ),
        Rule(
            divides(field_or("replicateDegree", 1), field("replicas")),
            "each copy of the model is sharded over the same number of whole pods: choose a divisor of replicas",
            "replicateDegree",
        ),
    )

    replicas: int = Field(default=1, ge=1, le=4096, description="Trainer pods.")
    devices_per_pod: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Devices of one pod, and ranks in it: GPUs, which the trainer container of the runtime template has to ask for, or on "
        "CPUs processes that share the pod's threads. Ranks of one pod talk over NVLink or its memory, others over the pods' network.",
        json_schema_extra={READER_DEFAULT: True},
    )
    replicate_degree: int = Field(
        default=1,
        ge=1,
        le=4096,
        description="Copies of the model, each sharded over replicas / replicateDegree pods. More copies need more memory, and pods then "
        "exchange shards of gradients instead of weights and gradients. 1 shards the model over all ranks.",
        json_schema_extra={READER_DEFAULT: True},
    )
    optimizer: OptimizerSpec = Field(default_factory=OptimizerSpec)
    max_tokens_per_bin: Annotated[int, Changeable.WHILE_SUSPENDED] = Field(
        default=8192,
        ge=16,
        le=16_777_216,
        description="Tokens of one forward pass, padding included; must hold the longest prompt plus response.",
    )
    minibatches: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Optimizer updates a step is split into, each of whole groups, shuffled by rounds.seed; 1 is strictly on-policy.",
    )
    stream: Annotated[StreamMode, Changeable.WHILE_SUSPENDED] = Field(
        default=StreamMode.AUTO, json_schema_extra={READER_DEFAULT: True}
    )
    max_skipped_steps: Annotated[int, Changeable.WHILE_SUSPENDED] = Field(
        default=3,
        ge=1,
        le=1_000_000,
        description="A minibatch whose gradient is not finite is skipped. The job fails after this many steps in a row in which every "
        "minibatch was skipped.",
    )
    gradient_checkpointing: Annotated[bool | None, Changeable.WHILE_SUSPENDED, FormerDefault(value=False)] = Field(
        default=None,
        description="Recompute activations in the backward pass: less memory, more time. Default: true where a bin doesn't fit otherwise, or "
        "with offloadActivations. Jobs that were created before false stopped being the default have false.",
    )
    offload_activations: Annotated[bool, Changeable.WHILE_SUSPENDED] = Field(
        default=False,
        description="Keep in host memory, until the backward pass, the activations from which layers are recomputed: for bins that don't fit "
        "otherwise. Takes maxTokensPerBin x hidden size x layers numbers of the host's memory, pinned, for each rank.",
        json_schema_extra={READER_DEFAULT: True},
    )
    compile: Annotated[bool | None, Changeable.WHILE_SUSPENDED] = Field(
        default=None,
        description="Have torch compile the model's layers and the loss, so that several operations take one pass over memory. The first "
        "step takes longer, later ones less time. Needs a compiler in the trainer's image: gcc for GPUs, g++ for CPUs. Default: true on "
        "GPUs, false on CPUs.",
    )
    deterministic: Annotated[bool | None, Changeable.WHILE_SUSPENDED] = Field(
        default=None,
        description="Use kernels that give the same bits every time, so that what docs/reproducibility.md promises about the trainer "
        "holds. Default: true on CPUs, false on GPUs, where such kernels are slower.",
    )

    @property
    def ranks(self) -> int:
        """FSDP2 ranks in all pods. Rank r is in pod r // devicesPerPod."""
        return self.replicas * self.devices_per_pod

    def is_deterministic(self, device: str) -> bool:
        """Whether trainers use deterministic kernels on devices of this type (`cuda`, `cpu`)."""
        return device == "cpu" if self.deterministic is None else self.deterministic

    def recomputes(self, *, fits: bool) -> bool:
        """Whether layers are computed again in the backward pass; if the spec doesn't say, where it has to be so.

        `fits` says whether a bin fits if they are not.
        """
        if self.gradient_checkpointing is None:
            return self.offload_activations or not fits
        return self.gradient_checkpointing
