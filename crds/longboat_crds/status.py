"""`status` of an RLJob. `training`, `demand`, `checkpoint` and `problem` belong to the driver, the rest to the operator."""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field

from longboat_crds.base import ApiModel, CpuQuantity, FieldsModel, Opaque, Timestamp, list_map
from longboat_crds.pools import MAX_POOLS

# Few enough to be read in `kubectl describe`.
RECENT_ROUNDS = 10
RECENT_RESHAPES = 5
RESUMED_DIFFERENCES = 32
# Domains of each reward whose learned limits are shown.
MOST_LEARNED_LIMITS = 8
RECENT_CPU_MOVES = 10
# Refusals of pods that keep their CPUs for a while; the operator begins no resize whose refusal would find no room.
CPU_REFUSALS = 64
# More than any limit of spec.failurePolicy, so that dropping the oldest changes no decision.
INCIDENTS = 1024
# The most pods of one role.
MAX_PODS = 4096

Count = Annotated[int, Field(ge=0, le=2**53)]
LINE_LENGTH = 256
PLACE_LENGTH = 1024
FAILURE_LENGTH = 1024
Line = Annotated[str, Field(max_length=LINE_LENGTH)]
Message = Annotated[str, Field(max_length=4096)]
_RETIRED = "Written by drivers of earlier releases that still run."
# That of metav1.Condition: a newer version may have reasons of other forms than this one's.
ReasonText = Annotated[str, Field(pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", max_length=1024)]


class Phase(StrEnum):
    """A word for people, chosen by the conditions and the job's pods."""

    PENDING = "Pending"
    QUEUED = "Queued"
    STARTING = "Starting"
    RUNNING = "Running"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    RESTARTING = "Restarting"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    TERMINATING = "Terminating"


class TrainingState(StrEnum):
    """What the driver says of itself."""

    STARTING = "Starting"
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        # A newer driver that reports an unknown state is alive, and hasn't ended.
        return cls.RUNNING if isinstance(value, str) else None


class RoundSummary(FieldsModel):
    """The outcome of one round, and what it cost."""

    round: Count = Field(description="Number of the round, from 1.")
    step: Count = Field(description="The optimizer step that it fed.")
    kind: Line = Field(description="`Short` or `Long`.")
    seconds: Line = Field(description="Time from the previous step's report to this one's.")
    kept: Count = Field(description="Prompts trained.")
    deferred: Count = Field(description="Prompts left to a later round.")
    generated_to_kept: Line = Field(description="Response tokens generated for each one trained.")
    tensor_parallel: Count | None = Field(default=None, description="Devices of an engine.")
    preemptions: Count | None = Field(
        default=None,
        description="How often an engine had no KV cache for a running sequence and computed it again later.",
    )
    kv_usage: Line | None = Field(default=None, description="Most of its KV cache that an engine had in use, 0 to 1.")


class ReshapeSummary(FieldsModel):
    """One change of how rollout pods' devices are grouped into engines."""

    step: Count = Field(description="Optimizer steps committed before it.")
    tensor_parallel: Count = Field(description="Devices of an engine since then.")
    reason: Line = Field(description="Why.")
    seconds: Line = Field(description="How long it took.")
    failure: Line | None = Field(default=None, description="Why engines have the shape that they had before.")
    kind: Line | None = Field(default=None, description=_RETIRED)
    gain_expected: Line | None = Field(default=None, description=_RETIRED)
    gain_measured: Line | None = Field(default=None, description=_RETIRED)


class DomainTraining(FieldsModel):
    """Progress of one domain of rounds.quotas."""

    domain: Line = Field(description="Its name.")
    waiting: Count = Field(description="Prompts that wait for a later round.")
    length_bias: Line | None = Field(default=None, description="As status.training.lengthBias, for this domain alone.")


class TrackingStatus(FieldsModel):
    """Where the trackers of spec.tracking show the job: the run's address, or the directory of its files if it is offline."""

    weights_and_biases: str | None = Field(
        default=None, max_length=PLACE_LENGTH, description="The run in Weights & Biases."
    )
    mlflow: str | None = Field(default=None, max_length=PLACE_LENGTH, description="The run in MLflow.")


class LearnedLimit(FieldsModel):
    """What has been learned of grading times in one domain."""

    domain: Line = Field(description="Its name; empty where rows have none.")
    limit: Line = Field(description="The limit of a problem in the middle of the domain, and that of one not seen yet.")
    kills: Line = Field(description="How many grades a learned limit ended.")
    wrong_kills: Line = Field(
        description="Which share of grades it ends although the response is correct: a 95 % interval, by audits."
    )
    saved: Line = Field(description="Grading time saved so far, as far as audits tell.")


class RewardGrading(FieldsModel):
    """How one reward grades."""

    name: Line = Field(description="Name of the reward.")
    isolation: Line = Field(
        description="rewards[].isolation as it is in force: `PerGrade` once Auto has fallen back to it."
    )
    reason: Line | None = Field(default=None, description="Why isolation Auto has fallen back to PerGrade.")
    learned_limits: list[LearnedLimit] | None = Field(
        default=None,
        max_length=MOST_LEARNED_LIMITS,
        description="With learnedTimeout: the learned limits of the domains with most grades.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )


class ResumedStatus(FieldsModel):
    """What was different when the job resumed from a checkpoint."""

    accepted: list[Line] | None = Field(
        default=None,
        max_length=RESUMED_DIFFERENCES,
        description="Differences that checkpoint.acceptChanges allowed, oldest first.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    spec: list[Line] | None = Field(
        default=None,
        max_length=RESUMED_DIFFERENCES,
        description="With checkpoint.resumeFrom: fields of the spec that differ from those of the job that saved the checkpoint.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )


class Training(ApiModel):
    """Progress, as the driver reports it."""

    incarnation: Count = Field(description="Incarnation number of the driver that wrote this.")
    state: TrainingState
    step: Count = Field(default=0, description="Optimizer steps committed.")
    steps: Count = Field(default=0, description="Optimizer steps of the whole job.")
    round_kind: Line = Field(default="Short", description="`Short` or `Long`.")
    stage: Line | None = Field(default=None, description="What the driver is doing, such as `generate` or `train`.")
    reward: Line | None = Field(default=None, description="Mean reward of the last step.")
    accuracy: Line | None = Field(
        default=None, description="Share of full scores (1 or more) in the last held-out evaluation."
    )
    tokens_per_second: Count | None = Field(
        default=None, description="Tokens (prompts and responses) trained in the last step, divided by its time."
    )
    step_seconds: Line | None = Field(default=None, description="Time of the last step.")
    weight_version: Count | None = Field(default=None, description="Optimizer step whose weights the engines serve.")
    parity: Line | None = Field(
        default=None, description="Largest log-prob difference between engine and trainer at the last publication."
    )
    queue: Line | None = Field(
        default=None, description="Prompts that wait for a later round, and how many rounds ago the oldest last ran."
    )
    attention: Line | None = Field(
        default=None, description="How samples share a forward pass of the trainer's model: packed, or padded and why."
    )
    skipped_prompts: Count | None = Field(
        default=None,
        description="With dataset.tooLongPrompts Skip: rows of the dataset that are too long; in a generated one, those met so far.",
    )
    length_bias: Line | None = Field(
        default=None,
        description="With TailBatching: trained response lengths against those of first launches, over the last periods of short "
        "and long rounds: ratio of means and Kolmogorov-Smirnov distance, each with a 95 % interval.",
    )
    audit_rounds: Line | None = Field(
        default=None,
        description="With rounds.auditEvery: trained response lengths against those of audit rounds, which have other prompts, in "
        "the form of lengthBias; the prompts counted are those of audit rounds.",
    )
    rewards: list[RewardGrading] | None = Field(
        default=None,
        max_length=16,
        description="How each reward grades: how its grades are kept apart, and the limits learned for them.",
        json_schema_extra=list_map("name"),
    )
    domains: list[DomainTraining] | None = Field(
        default=None,
        max_length=64,
        description="With rounds.quotas: progress of each domain.",
        json_schema_extra=list_map("domain"),
    )
    recent_rounds: list[RoundSummary] | None = Field(
        default=None,
        max_length=RECENT_ROUNDS,
        description="The last rounds, oldest first.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    tensor_parallel: Count | None = Field(default=None, description="Devices of an engine.")
    reshapes: list[ReshapeSummary] | None = Field(
        default=None,
        max_length=RECENT_RESHAPES,
        description="With rollout.parallelism: the last changes of engines, oldest first.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    tracking: TrackingStatus | None = None
    resumed: ResumedStatus | None = None
    updated: Timestamp | None = Field(default=None, description="When this was written.")
    # The API server rejects a whole status for one unknown field.
    prompt_overcommit: Line | None = Field(default=None, description=_RETIRED)
    cpu_moves: list[Opaque] | None = Field(
        default=None,
        max_length=RECENT_CPU_MOVES,
        description=_RETIRED,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )


class PodsDemand(FieldsModel):
    """Pods that the job could use now."""

    replicas: Count = Field(description="Pods that it could use.")
    give_first: list[Line] | None = Field(
        default=None,
        max_length=MAX_PODS,
        description="Pods that it would do without first, in this order.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    drained: list[Line] | None = Field(
        default=None,
        max_length=MAX_PODS,
        description="Pods in which nothing runs any more, and nothing will: they may be deleted.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    reason: Line | None = Field(default=None, description="Why, for people.")


class NumberedDemand(FieldsModel):
    """Numbers what a driver asks for, so that a grant can answer it."""

    incarnation: Count = Field(
        description="Incarnation of the driver that asks; what another one asked for doesn't count."
    )
    number: Count = Field(
        description="Number of the demand within its incarnation, from 1; each one is answered by a grant."
    )


class RolloutDemand(NumberedDemand, PodsDemand):
    """Rollout pods that the job could use now."""


class PoolDemand(PodsDemand):
    """Pods of an environment pool that the job could use now."""

    name: Line = Field(description="Name of the pool.")


class EnvironmentDemand(NumberedDemand, ApiModel):
    """Environment pods that the job could use now."""

    pools: list[PoolDemand] | None = Field(
        default=None,
        max_length=MAX_POOLS,
        description="The pools. A pool that isn't among them gets what the spec says.",
        json_schema_extra=list_map("name"),
    )


class PoolCpuDemand(FieldsModel):
    """CPUs that a reward pool could use now."""

    name: Line = Field(description="Its name.")
    cpu: CpuQuantity = Field(description="CPUs that all its pods together could use.")
    reason: Line | None = Field(default=None, description="Why, for people.")


class RewardDemand(NumberedDemand, ApiModel):
    """CPUs that reward pools could use now."""

    pools: list[PoolCpuDemand] | None = Field(
        default=None,
        max_length=MAX_POOLS,
        description="Each pool; one that isn't named asks for no more than it has.",
        json_schema_extra=list_map("name"),
    )
    reason: Line | None = Field(default=None, description="Why, for people.")


class Demand(FieldsModel):
    """What the driver could use now."""

    incarnation_request: str | None = Field(
        default=None,
        max_length=64,
        description="Token with which a driver asks for its number; after a dash, the least number that it can use.",
    )
    previous_failure: str | None = Field(
        default=None,
        max_length=FAILURE_LENGTH,
        description="How the previous start failed, if its container kept running.",
    )
    rollout: RolloutDemand | None = None
    reward: RewardDemand | None = None
    environment: EnvironmentDemand | None = None


class CheckpointStatus(FieldsModel):
    """The newest complete checkpoint."""

    incarnation: Count = Field(description="Incarnation of the driver that saved it.")
    step: Count = Field(description="Optimizer steps it contains.")
    path: str | None = Field(default=None, max_length=1024, description="Its directory in the claim.")
    export: str | None = Field(
        default=None, max_length=1024, description="Directory in the claim of the newest exported model."
    )
    time: Timestamp | None = Field(
        default=None, description="When it was completed; if no driver has told, when one found it."
    )


class Problem(FieldsModel):
    """What the driver wants a person to know; the operator turns it into a condition."""

    reason: ReasonText = Field(description="One word for machines (docs/conditions.md).")
    field: Line | None = Field(default=None, description="Path of the spec field to change.")
    message: Message = Field(description="What is wrong, and the cure.")
    fatal: bool = Field(default=False, description="No restart can cure it: the job fails.")


class Incarnation(FieldsModel):
    """The current start of the driver."""

    number: Count = Field(description="Higher than that of every earlier start.")
    request: str = Field(max_length=64, description="The request (demand.incarnationRequest) that it answers.")


class LeavingPod(FieldsModel):
    """A pod that the job has to give back."""

    pod: Line = Field(description="Its name.")
    deadline: Timestamp = Field(description="When it is deleted, unless the driver has drained it before.")


class PodsGrant(FieldsModel):
    """Pods that the job gets."""

    replicas: Count = Field(description="Pods that the job may have, without those that leave.")
    leaving: list[LeavingPod] | None = Field(
        default=None,
        max_length=MAX_PODS,
        description="Pods to drain.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )


class RolloutGrant(PodsGrant):
    """Rollout pods that the job gets."""

    answers: Count | None = Field(
        default=None, description="Number of the demand that it answers; none while the current driver has not asked."
    )


class PoolGrant(PodsGrant):
    """Pods of an environment pool that the job gets."""

    name: Line = Field(description="Name of the pool.")


class EnvironmentGrant(ApiModel):
    """Environment pods that the job gets."""

    answers: Count | None = Field(
        default=None, description="Number of the demand that it answers; none while the current driver has not asked."
    )
    pools: list[PoolGrant] | None = Field(
        default=None, max_length=MAX_POOLS, description="Each pool.", json_schema_extra=list_map("name")
    )


class PoolCpu(FieldsModel):
    """CPUs of one reward pool."""

    name: Line = Field(description="Its name.")
    cpu: CpuQuantity = Field(description="CPUs of all its pods together.")


class RewardGrant(ApiModel):
    """CPUs that reward pools may have in the end."""

    answers: Count | None = Field(
        default=None, description="Number of the demand that it answers; none while the current driver has not asked."
    )
    pools: list[PoolCpu] | None = Field(
        default=None, max_length=MAX_POOLS, description="Each pool.", json_schema_extra=list_map("name")
    )


class Grant(FieldsModel):
    """What the job gets of its capacity. Written by the capacity's plan, with a field manager of its own."""

    rollout: RolloutGrant | None = None
    reward: RewardGrant | None = None
    environment: EnvironmentGrant | None = None


class Allocation(FieldsModel):
    """What the operator has granted, and what the job has."""

    incarnation: Incarnation | None = None
    rollout_replicas: Count | None = Field(default=None, description="Rollout pods.")
    grant: Grant | None = None


class Reported(FieldsModel):
    """What Events have told already, so that each of these is told once, whichever operator looks."""

    reshapes: list[Annotated[str, Field(max_length=16)]] | None = Field(
        default=None,
        max_length=RECENT_RESHAPES,
        description="Digests of the entries of training.reshapes.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    demand_limited: bool | None = Field(
        default=None, description="That the job got more or fewer rollout pods than its driver asked for."
    )


class PodRecord(FieldsModel):
    """What is known about the newest pod of one place, so that nothing is counted twice."""

    pool: Line | None = Field(default=None, description="The pool that the pod belongs to, if its role has pools.")
    index: Count = Field(description="The pod's number within its role, or within its pool.")
    attempt: Count = Field(description="The pod's number within its place; its name ends in it.")
    restarts: Count = Field(default=0, description="Restarts of its role's own containers that have been recorded.")
    losses: Count = Field(default=0, description="Pods of this place lost since the last new step; sets the back-off.")
    lost_time: Timestamp | None = Field(default=None, description="When its loss was noticed; it is to be replaced.")
    gone: bool | None = Field(
        default=None,
        description="True: nothing has its name any more, as was looked up once no watch showed it. Only then is it replaced.",
    )
    node: Line | None = Field(default=None, description="The node it was last seen on.")
    was_ready: bool = Field(default=False, description="Whether it has been ready.")
    incident: Timestamp | None = Field(
        default=None, description="The incident, one of the role's, that its last counted failure belongs to."
    )
    failed: Line | None = Field(
        default=None, description="What failed in that incident: a container, or `pod` for the whole."
    )


class IntactPods(FieldsModel):
    """Pods to which nothing has happened, nor to any that they replaced. They share a record."""

    pool: Line | None = Field(default=None, description="The pool that they belong to, if their role has pools.")
    attempt: Count = Field(description="The number of each within its place.")
    indexes: str = Field(
        pattern=r"^[0-9]{1,6}(-[0-9]{1,6})?(,[0-9]{1,6}(-[0-9]{1,6})?)*$",
        max_length=32768,
        description="Their numbers within their role, or within their pool, as ranges: `0-3,5`.",
    )
    was_ready: bool = Field(default=False, description="Whether they have been ready.")


class PoolStatus(FieldsModel):
    """Pods of one reward or environment pool."""

    name: Line = Field(description="Its name.")
    ready_text: Line = Field(description="`ready/desired`.")
    cpu: Line | None = Field(
        default=None, description="Sum of the CPU limits of its containers that run the user's code."
    )


class CpuMoveOutcome(StrEnum):
    """How a move of CPUs between reward pools stands."""

    UNDER_WAY = "UnderWay"
    DONE = "Done"
    INCOMPLETE = "Incomplete"
    SUPERSEDED = "Superseded"


class CpuMove(FieldsModel):
    """CPUs that the grant moves from one reward pool to another."""

    source: Line | None = Field(default=None, description="Pool that they come from; none: nobody had them.")
    target: Line = Field(description="Pool that they go to.")
    cpu: CpuQuantity = Field(description="How many.")
    reason: Line | None = Field(default=None, description="Why.")
    outcome: CpuMoveOutcome = Field(
        description="`Done`: all pods of the pool have their share. `Incomplete`: some of its pods could not be given it (refusals). "
        "`Superseded`: the next move came before the end of this one."
    )
    seconds: Line | None = Field(
        default=None, description="From the grant to the last pod's word that it has its share."
    )
    time: Timestamp = Field(description="When it began.")


class CpuRefusal(FieldsModel):
    """A reward pod whose CPUs could not be changed, and keeps what it has for a while."""

    pod: Line = Field(description="Its name.")
    node: Line | None = Field(default=None, description="Its node.")
    cpu: CpuQuantity = Field(description="What it was to have.")
    outcome: Line = Field(
        description="`Refused` by the API server, `Deferred` or `Infeasible` on its node, `Error`, or `Silent`: its node said nothing."
    )
    message: Line = Field(default="", description="What the server or the node said.")
    sources: list[PoolCpu] | None = Field(
        default=None,
        max_length=MAX_POOLS,
        description="Pools that had given CPUs for it, and get them back.",
        json_schema_extra=list_map("name"),
    )
    times: Count = Field(description="How often in a row.")
    until: Timestamp = Field(description="It is not tried again before.")


class CpuResize(FieldsModel):
    """A reward pod's CPUs that are being changed, or those of a pod about to be created."""

    pod: Line = Field(description="Its name.")
    before: CpuQuantity | None = Field(default=None, description="What it had; none: it is about to be created.")
    cpu: CpuQuantity = Field(description="What it is to have.")
    version: Line | None = Field(
        default=None, description="resourceVersion of the pod that the change is for: of no later one."
    )
    takes_back: bool | None = Field(default=None, description="True: it takes back a change that failed.")
    time: Timestamp = Field(description="When it was decided.")


class RewardCpuStatus(ApiModel):
    """With spec.rewardCpu: the graders' CPUs, and how they move."""

    total: CpuQuantity = Field(description="spec.rewardCpu.total.")
    used: CpuQuantity = Field(
        description="Sum over all reward pods of the most that each is granted, asks for, has been allocated or has in force, until it is gone."
    )
    pools: list[PoolCpu] | None = Field(
        default=None,
        max_length=MAX_POOLS,
        description="The grant that is followed.",
        json_schema_extra=list_map("name"),
    )
    moves: list[CpuMove] | None = Field(
        default=None,
        max_length=RECENT_CPU_MOVES,
        description="The last moves, oldest first.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    refusals: list[CpuRefusal] | None = Field(
        default=None,
        max_length=CPU_REFUSALS,
        description="Pods whose CPUs could not be changed.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    resizes: list[CpuResize] | None = Field(
        default=None,
        max_length=MAX_PODS,
        description="What is under way: recorded before it is asked for, so that it counts whoever asks.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )


class RoleStatus(FieldsModel):
    """Pods of one role."""

    desired: Count = Field(default=0, description="Pods that should exist.")
    ready: Count = Field(default=0, description="Pods that are ready.")
    ready_text: Line = Field(default="", description="`ready/desired`, for the printer column.")
    restarts: Count = Field(
        default=0,
        description="Restarts of the role's own containers, and pod replacements, since the job was created, counted by failurePolicy or "
        "not.",
    )
    recent_restarts: Count = Field(
        default=0, description="Incidents since the last new step; what failurePolicy limits."
    )
    incidents: list[Timestamp] | None = Field(
        default=None,
        max_length=INCIDENTS,
        description="When each of them began. Failures within a minute of that belong to it, whatever the nodes, but for a second one of "
        "the same container.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    restart_step: Count | None = Field(
        default=None, description="Step that recentRestarts belong to; a later one starts from 0."
    )
    next_attempt: Count = Field(default=0, description="Lowest attempt number for a place without a record.")
    pools: list[PoolStatus] | None = Field(
        default=None,
        max_length=MAX_POOLS,
        description="The pools of its pods, if the role has pools.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    pods: list[PodRecord] | None = Field(
        default=None,
        max_length=MAX_PODS,
        description="The operator's memory of each pod, except those in `intact`.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    intact: list[IntactPods] | None = Field(
        default=None,
        max_length=MAX_PODS,
        description="Pods to which nothing has happened.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    cpu: Line | None = Field(default=None, description="Sum of CPU limits of the role's work containers.")
    cpu_text: Line | None = Field(
        default=None,
        description="The same for the printer column; with spec.rewardCpu `used/total` of status.rewardCpu.",
    )


class RolesStatus(FieldsModel):
    """By role."""

    driver: RoleStatus | None = None
    rollout: RoleStatus | None = None
    reward: RoleStatus | None = None
    trainer: RoleStatus | None = None
    environment: RoleStatus | None = None


class Condition(FieldsModel):
    """metav1.Condition."""

    type: str = Field(max_length=64, description="What it is about (docs/conditions.md).")
    status: str = Field(pattern="^(True|False|Unknown)$", max_length=7, description="Whether it holds.")
    reason: ReasonText = Field(description="One word for machines (docs/conditions.md).")
    message: Message = Field(default="", description="The same for people.")
    last_transition_time: Timestamp = Field(description="When `status` last changed.")
    observed_generation: Count | None = Field(
        default=None, description="Generation of the spec that this was judged from."
    )


class RuntimeStatus(FieldsModel):
    """The template that this job uses."""

    kind: Line = Field(description="RLRuntime or ClusterRLRuntime.")
    name: Line = Field(description="Name of the template.")
    revision: Line = Field(description="ControllerRevision that stores it.")


class Placement(FieldsModel):
    """How much of the job's minimum of pods (see phase Queued) has nodes: until rounds run, and whenever a running job lacks some of it."""

    minimum: Count = Field(description="Pods of the minimum.")
    placed: Count = Field(description="How many of them have a node.")
    since: Timestamp | None = Field(
        default=None,
        description="When `placed` last grew or, in a running job, fell below `minimum`; absent while the whole minimum has nodes, or "
        "there are no pods.",
    )
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = Field(
        default=None,
        description="Highest priority of the job's pods, while only part of the minimum has nodes.",
    )
    start_seconds: Count | None = Field(
        default=None,
        description="Seconds that failurePolicy.startDeadlineSeconds has counted so far, without those since `startSince`.",
    )
    start_since: Timestamp | None = Field(
        default=None,
        description="Since when failurePolicy.startDeadlineSeconds has been counting; absent while it doesn't.",
    )
    releases: Count | None = Field(
        default=None,
        description="Releases of all pods since the whole minimum last had nodes; determines the next wait.",
    )
    cause: Message | None = Field(default=None, description="Why the pods were released.")
    release_time: Timestamp | None = Field(
        default=None, description="When the release began; pods are being deleted, the driver's first."
    )
    retry_time: Timestamp | None = Field(
        default=None, description="When pods are created again; set once all have been released."
    )


class RestartRecord(FieldsModel):
    """One restart, newest last."""

    role: Line = Field(description="Role of the pod.")
    pod: Line = Field(description="Name of the pod.")
    reason: Line = Field(description="One word for machines (docs/conditions.md).")
    message: str = Field(
        default="", max_length=FAILURE_LENGTH, description="Exit code and last lines, or what happened to the pod."
    )
    node: Line | None = Field(default=None, description="The node that the pod was on.")
    counted: bool = Field(
        default=True,
        description="Whether it counts towards failurePolicy's limit: evictions through the API, preemptions, and nodes that are lost or "
        "shut down don't, nor does a driver that lost such a pod, that got no answer from the API server, or that is replaced because "
        "rounds.steps was raised after its last step.",
    )
    time: Timestamp = Field(description="When it was noticed.")


class DrainStatus(FieldsModel):
    """Nodes with driver or trainer pods that are unschedulable, as `kubectl drain` makes them (`spec.unschedulable`)."""

    since: Timestamp = Field(
        description="When the newest of them was noticed: the driver then saves, and checkpoint.graceSeconds begin."
    )
    step: Count = Field(
        description="The step committed at that time: once it is in the checkpoint, driver and trainer pods may be evicted."
    )
    nodes: list[Line] = Field(
        max_length=MAX_PODS,
        description="Their names.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )


class RLJobStatus(ApiModel):
    """What the operator and the driver report about the job."""

    observed_generation: Count | None = Field(
        default=None, description="Generation of the spec that the operator has acted on."
    )
    operator: str | None = Field(
        default=None,
        pattern="^[^/]+/[^/]+$",
        max_length=317,
        description="The release that serves the job, by namespace and name of its Lease. Others leave the job alone while that Lease is "
        "held.",
    )
    phase: Phase | None = None
    reason: Line | None = Field(default=None, description="Reason of the condition that explains the phase.")
    start_time: Timestamp | None = Field(
        default=None,
        description="When the first pods were created; kept across suspensions. Most of spec is fixed from then on.",
    )
    completion_time: Timestamp | None = Field(default=None, description="When the job succeeded or failed.")
    suspend_time: Timestamp | None = Field(
        default=None, description="When suspending began; checkpoint.graceSeconds run from it."
    )
    drain: DrainStatus | None = None
    runtime: RuntimeStatus | None = None
    ray_token_secret: Line | None = Field(
        default=None, description="Secret with the token of the job's Ray cluster; its pods mount it."
    )
    selector: str | None = Field(
        default=None, max_length=512, description="Label selector of rollout pods, for the scale subresource."
    )
    roles: RolesStatus | None = None
    allocation: Allocation | None = None
    placement: Placement | None = None
    reward_cpu: RewardCpuStatus | None = None
    reported: Reported | None = None
    restarts: Count | None = Field(default=None, description="Restarts of all roles since the job started.")
    restart_history: list[RestartRecord] | None = Field(
        default=None,
        max_length=10,
        description="The last restarts.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    conditions: list[Condition] | None = Field(
        default=None,
        max_length=16,
        description="docs/conditions.md explains every reason.",
        json_schema_extra=list_map("type"),
    )
    training: Training | None = None
    demand: Demand | None = None
    checkpoint: CheckpointStatus | None = None
    problem: Problem | None = None


DRIVER_FIELDS = frozenset({"training", "demand", "checkpoint", "problem"})
OPERATOR_FIELDS = frozenset(f.alias or n for n, f in RLJobStatus.model_fields.items()) - DRIVER_FIELDS
