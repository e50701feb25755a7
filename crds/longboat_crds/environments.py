"""`spec.environments` and `spec.environmentPools`: programs that play episodes, and the pods in which they run."""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Any, ClassVar

from pydantic import Field

from longboat_crds.base import LIST_TYPE, ApiModel, ColumnName, ObjectName, PoolName, Quantity, Seconds
from longboat_crds.expressions import at_most, exactly_one, field, if_present
from longboat_crds.functions import ConfigMapFunction, FunctionPath
from longboat_crds.pools import PoolSpec
from longboat_crds.problems import SpecProblem, suggestion
from longboat_crds.reasons import Reason
from longboat_crds.reward_kinds import TEST_COLUMNS
from longboat_crds.rewards import RewardSpec
from longboat_crds.rules import FieldError, Rule

MAX_ENVIRONMENTS = 8
MAX_EPISODES_PER_POD = 1024
# The most computed tokens of a sample, in lengths of the model's context, unless an environment says otherwise.
COMPUTED_CONTEXTS = 4


class EnvironmentHistory(StrEnum):
    """What happens to requests whose earlier turns the chat template renders anew instead of appending to them.

    Segments: such a request begins a segment of its own, and is counted. Append: it is an error, at the first list of tools with which the
    template doesn't append.
    """

    SEGMENTS = "Segments"
    APPEND = "Append"


class EpisodeLimits(ApiModel):
    """Limits of one episode. rollout.sampling.maxTokens limits the tokens that it draws in all turns."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            at_most(field("deadlineSeconds"), field("wallSeconds")),
            "includes the time that deadlineSeconds limits: raise it, or lower deadlineSeconds",
            "wallSeconds",
        ),
    )

    max_turns: int = Field(
        default=64, ge=1, le=10_000, description="Most requests that the model answers; further ones are refused."
    )
    max_segments: int = Field(
        default=16,
        ge=1,
        le=1024,
        description="Most segments: token sequences that requests begin, such as after a compaction or for a sub-agent. Requests that "
        "would begin more are refused.",
    )
    max_computed_tokens: int | None = Field(
        default=None,
        ge=1,
        le=2**31 - 1,
        description="Most tokens of all its segments together, context included: what the trainer computes for the sample. Further "
        f"requests are refused. Default: {COMPUTED_CONTEXTS} times model.maxLength.",
    )
    deadline_seconds: Seconds = Field(
        default=600,
        ge=1,
        description="Most seconds in the environment: those in which no request of the episode waits for the model. An episode that takes "
        "longer is a timeout of its reward (timeoutScore of the reward of kind Episode).",
    )
    wall_seconds: Seconds = Field(
        default=14_400,
        ge=1,
        description="Most seconds in all. An episode that takes longer is lost, and played again; after three losses its group is dropped.",
    )
    memory: Quantity = Field(
        default="512Mi",
        description="Most memory of all processes of an episode together. An episode that uses more is lost.",
    )
    processes: int = Field(
        default=64,
        ge=1,
        le=4096,
        description="Most processes and threads of an episode. An episode that starts more is lost.",
    )
    file_size: Quantity = Field(
        default="256Mi",
        description="Largest file that an episode may write, and largest size of its directory. An episode that writes more is lost.",
    )


class EnvironmentSpec(ApiModel):
    """A program that plays one episode and says what it was worth. It calls the model at an OpenAI-compatible endpoint that records tokens.

    It is the user's own code, trusted as a reward function is.
    """

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            exactly_one("function", "configMap"),
            "give exactly one of function and configMap",
            "function",
            FieldError.REQUIRED,
        ),
    )

    name: ObjectName = Field(description="Name of the environment in metrics; no two environments share one.")
    function: FunctionPath | None = Field(
        default=None,
        description="`module:function`, or `/path/file.py:function`: an `async def episode(task, model)`, or a class with `reset` and `step` "
        "(gymnasium, gem, textarena).",
    )
    config_map: ConfigMapFunction | None = None
    pool: PoolName | None = Field(
        default=None,
        description="Pool of environmentPools in which it runs. Required if there are several pools. Default: the only pool.",
    )
    domains: list[ColumnName] = Field(
        default_factory=list,
        max_length=32,
        description="Domains whose rows it plays (column dataset.columns.domain); empty means all. Exactly one environment has to match "
        "each row.",
        json_schema_extra={LIST_TYPE: "set"},
    )
    columns: list[ColumnName] | None = Field(
        default=None,
        max_length=64,
        description="Columns of the row that it gets as its `task`. Default: all but the ground truth (dataset.columns.groundTruth), columns "
        f"with test cases ({', '.join(sorted(TEST_COLUMNS))}), and those that rewards[].sandbox.solution names.",
        json_schema_extra={LIST_TYPE: "set"},
    )
    history: EnvironmentHistory = EnvironmentHistory.SEGMENTS
    limits: EpisodeLimits = Field(default_factory=EpisodeLimits)


class EnvironmentPoolSpec(PoolSpec):
    """Pods that play episodes. A group's episodes begin in order, each as soon as a pod of the pool has a free slot."""

    rules: ClassVar[tuple[Rule, ...]] = (
        *PoolSpec.rules,
        Rule(
            if_present("minReplicas", lambda least: at_most(least, field("replicas"))),
            "is below minReplicas, the fewest pods of the pool: raise it, or lower minReplicas",
            "replicas",
        ),
    )

    min_replicas: int | None = Field(
        default=None,
        ge=1,
        le=512,
        description="Fewest pods of the pool when the job can't use all replicas. Default: 1.",
    )
    episodes_per_pod: int = Field(
        default=16, ge=1, le=MAX_EPISODES_PER_POD, description="Most episodes that one pod plays at once."
    )
    template: ObjectName | None = Field(
        default=None,
        description="Entry of environmentTemplates in the runtime template (runtimeRef) from which the pool's pods are made: image, "
        "memory, network and so on. Default: none, so roles.environment alone says how they are made.",
    )

    @property
    def at_once(self) -> int:
        """Most episodes that one pod plays at once."""
        return self.episodes_per_pod


def environments_of(environments: Iterable[EnvironmentSpec] | None, pool: str) -> dict[int, EnvironmentSpec]:
    """Returns the environments that a pool plays, by their places in `environments`.

    They name it or, where it is the only pool, may name none.
    """
    return {
        place: environment for place, environment in enumerate(environments or ()) if environment.pool in {None, pool}
    }


def environment_of(environments: Iterable[EnvironmentSpec], domain: str | None) -> EnvironmentSpec | None:
    """Returns the environment that plays rows of this domain; None if none does. By the spec's rules no two share a domain."""
    return next((each for each in environments if not each.domains or domain in each.domains), None)


def task_of(
    environment: EnvironmentSpec, field: str, columns: Mapping[str, Any], withheld: Collection[str]
) -> dict[str, Any]:
    """Returns what an environment gets of a row with these columns; `field` is the environment's spec path.

    Rule: the columns that it lists; without a list all that are neither `withheld` (`withheld_columns`) nor in TEST_COLUMNS.

    Raises:
        SpecProblem: the row lacks a column that it lists.
    """
    if environment.columns is None:
        return {name: value for name, value in columns.items() if name not in withheld and name not in TEST_COLUMNS}
    for name in environment.columns:
        if name not in columns:
            raise SpecProblem(
                Reason.DATASET_COLUMN_MISSING,
                f"{field}.columns",
                f"Rows have no column {name!r}.{suggestion(name, columns)} They have {', '.join(columns) or 'none'}.",
            )
    return {name: columns[name] for name in environment.columns}


def withheld_columns(ground_truth: str | None, rewards: Iterable[RewardSpec]) -> frozenset[str]:
    """Returns the columns that would give a row's answer away: those with the ground truth, or with a program that passes all tests.

    Rule: for a path into a column, such as `reward_model.ground_truth`, both a column of that name and the one that it leads into.
    """
    paths = [ground_truth, *(reward.sandbox.solution for reward in rewards if reward.sandbox)]
    return frozenset(name for path in paths if path for name in (path, path.partition(".")[0]))
