"""`spec.rollout`: engines and sampling."""

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from longboat_crds.base import LIST_TYPE, READER_DEFAULT, ApiModel, Path, Quantity
from longboat_crds.expressions import (
    at_most,
    both,
    constant,
    field,
    if_present,
    negation,
    present,
    product,
)
from longboat_crds.rules import Changeable, Removed, Rule

MAX_DEVICES_PER_POD = 64


# Only the vLLM of the job's image knows which names exist: an engine checks them when it starts.
ParserName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]


class RepetitionSpec(ApiModel):
    """When to end a response that repeats itself. It is graded and trained like any other, and marked."""

    pattern_tokens: int = Field(ge=1, le=1024, description="Longest pattern that is looked for, in tokens.")
    count: int = Field(
        ge=2, le=1024, description="The response ends once its last tokens are this many copies of one pattern."
    )


class SamplingSpec(ApiModel):
    """How the tokens of training are drawn. The defaults sample the model as it is, which the loss assumes."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            at_most(constant(1.0), field("topP")),
            "an engine that leaves out unlikely tokens gives the others a higher probability, which the trainer doesn't know: leave "
            "topP out, or set it to 1; held-out evaluation may have its own, dataset.evaluation.topP",
            "topP",
        ),
    )

    max_tokens: int = Field(
        ge=1,
        le=16_777_216,
        description="Longest response, in tokens; with environments, most tokens that the model draws in all turns of an episode.",
    )
    temperature: float = Field(default=1.0, gt=0.0, le=2.0, description="1 draws from the model's own distribution.")
    top_p: float = Field(
        default=1.0,
        gt=0.0,
        le=1.0,
        description="Draw from the likeliest tokens whose probabilities add up to this. Training draws from all tokens: only 1 is "
        "accepted here.",
    )
    stop: list[Annotated[str, Field(min_length=1, max_length=256)]] = Field(
        default_factory=list,
        max_length=16,
        description="A response ends before any of these texts. One that is a special token, such as `<|im_end|>`, is treated as that token.",
        json_schema_extra={LIST_TYPE: "atomic"},
    )
    stop_token_ids: list[Annotated[int, Field(ge=0, le=2**31 - 1)]] = Field(
        default_factory=list,
        max_length=64,
        description="Ids of tokens that end a response, in addition to the model's end-of-sequence tokens.",
        json_schema_extra={READER_DEFAULT: True, LIST_TYPE: "atomic"},
    )
    include_stop: bool = Field(
        default=False,
        description="Keeps the stop text or stop token that ended a response in its text.",
        json_schema_extra={READER_DEFAULT: True},
    )
    repetition: RepetitionSpec | None = Field(
        default=None,
        description="Ends responses that repeat themselves; reward functions see `finish_reason` `repetition`. Default: they continue.",
    )


class ParallelismMode(StrEnum):
    """Says who decides how the devices of rollout pods are grouped into engines."""

    FIXED = "Fixed"
    """The spec: enginesPerPod engines of tensorParallel devices each."""
    ADAPTIVE = "Adaptive"
    """The driver chooses the fastest size from measured rounds and, if there is one, a profile (`longboat profile`)."""


_REMOVED_MODES = Removed("use Adaptive; it also uses a profile, if one is given", ("Preemptions", "Predictive"))


def _read_mode(value: Any) -> Any:
    """Reads a stored job that has a removed mode."""
    return ParallelismMode.ADAPTIVE.value if value in _REMOVED_MODES.values else value


class ParallelismSpec(ApiModel):
    """How the devices of a rollout pod are grouped into engines from round to round."""

    mode: Annotated[ParallelismMode, Changeable.ANY_TIME, _REMOVED_MODES, BeforeValidator(_read_mode)] = (
        ParallelismMode.FIXED
    )
    min_tensor_parallel: Annotated[int | None, Changeable.ANY_TIME] = Field(
        default=None, ge=1, le=64, description="Fewest devices of an engine. Default: 1."
    )
    max_tensor_parallel: Annotated[int | None, Changeable.ANY_TIME] = Field(
        default=None, ge=1, le=64, description="Most devices of an engine. Default: all of its pod."
    )
    profile: Annotated[Path | None, Changeable.ANY_TIME] = Field(
        default=None,
        description="Optional, with Adaptive: the file that `longboat profile` wrote, on a volume of the driver.",
    )


class PublicationMode(StrEnum):
    """Says how the weights of each step get from the trainer to engines."""

    AUTO = "Auto"
    """What this release has tried most: Host. A later one may choose Direct where there are GPUs."""
    DIRECT = "Direct"
    """Broadcasts from trainer pods to rollout pods, by gloo on CPUs and by NCCL on GPUs, where nobody has tried it; Host where versions of
    torch or NCCL differ."""
    HOST = "Host"
    """Through the host's memory: Ray's object store, in /dev/shm."""


class RolloutSpec(ApiModel):
    """Rollout pods and the vLLM engines in them. A pod has enginesPerPod x tensorParallel devices."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            at_most(product(field("enginesPerPod"), field("tensorParallel")), constant(MAX_DEVICES_PER_POD)),
            f"enginesPerPod x tensorParallel is the number of devices of one pod, at most {MAX_DEVICES_PER_POD}: "
            "lower one of them",
            "tensorParallel",
        ),
        Rule(
            negation(both(present("kvCache"), present("deviceMemory"))),
            "leaves to the KV cache what the weights don't need, and kvCache says how much that is: leave one of them out",
            "deviceMemory",
        ),
        Rule(
            if_present("parallelism.minTensorParallel", lambda least: at_most(least, field("tensorParallel"))),
            "is above tensorParallel, which the job starts with: lower it, or raise tensorParallel",
            "parallelism.minTensorParallel",
        ),
        Rule(
            if_present("parallelism.maxTensorParallel", lambda most: at_most(field("tensorParallel"), most)),
            "is below tensorParallel, which the job starts with: raise it, or lower tensorParallel",
            "parallelism.maxTensorParallel",
        ),
        Rule(
            if_present(
                "parallelism.maxTensorParallel",
                lambda most: at_most(most, product(field("enginesPerPod"), field("tensorParallel"))),
            ),
            "is more than the devices of a pod, enginesPerPod x tensorParallel: lower it, or raise enginesPerPod",
            "parallelism.maxTensorParallel",
        ),
        Rule(
            if_present("minReplicas", lambda least: at_most(least, field("replicas"))),
            "is below minReplicas, the fewest rollout pods of the job: raise it, or lower minReplicas",
            "replicas",
        ),
    )

    replicas: Annotated[int, Changeable.ANY_TIME] = Field(
        default=1, ge=0, le=4096, description="Rollout pods; `kubectl scale` sets it."
    )
    min_replicas: Annotated[int | None, Changeable.ANY_TIME] = Field(
        default=None, ge=0, le=4096, description="Fewest rollout pods that the job may be scaled to. Default: 0."
    )
    engines_per_pod: Annotated[int, Changeable.WHILE_SUSPENDED] = Field(
        default=1, ge=1, le=64, description="Engines of one pod at the start."
    )
    tensor_parallel: Annotated[int, Changeable.WHILE_SUSPENDED] = Field(
        default=1, ge=1, le=64, description="Devices (on CPU: worker processes) of one engine at the start."
    )
    parallelism: ParallelismSpec = Field(default_factory=ParallelismSpec)
    sampling: SamplingSpec
    kv_cache: Annotated[Quantity | None, Changeable.WHILE_SUSPENDED] = Field(
        default=None,
        description="KV cache per rank, which is one device of an engine, such as `64Mi`. Default: what deviceMemory leaves, else vLLM's "
        "own.",
    )
    device_memory: Annotated[Quantity | None, Changeable.WHILE_SUSPENDED] = Field(
        default=None,
        description="Memory of one device that an engine may use, such as `72Gi`. A tenth is kept in reserve for activations; what the "
        "rank's weights leave of the rest is its KV cache. Default: vLLM's own rule.",
    )
    max_sequences: Annotated[int, Changeable.WHILE_SUSPENDED] = Field(
        default=256, ge=1, le=16_384, description="Sequences an engine decodes at once."
    )
    enforce_eager: Annotated[bool, Changeable.WHILE_SUSPENDED] = Field(
        default=False, description="Skip compilation and graph capture: starts sooner, decodes slower on GPUs."
    )

    publication: Annotated[PublicationMode, Changeable.WHILE_SUSPENDED] = Field(
        default=PublicationMode.AUTO,
        description="How weights get from the trainer to engines. Engines that come after a publication always get them by Host.",
        json_schema_extra={READER_DEFAULT: True},
    )

    tool_parser: ParserName | None = Field(
        default=None,
        description="With environments: vLLM's parser of the model's tool calls, such as `hermes`. Default: none, so replies have no tool "
        "calls.",
    )
    reasoning_parser: ParserName | None = Field(
        default=None,
        description="With environments: vLLM's parser that separates the model's reasoning from its answer, such as `qwen3`. Default: "
        "none, so reasoning is part of the answer.",
    )

    @property
    def devices_per_pod(self) -> int:
        """Devices of a pod: accelerators that the rollout container of the runtime template has to ask for (on CPU: worker processes)."""
        return self.engines_per_pod * self.tensor_parallel
