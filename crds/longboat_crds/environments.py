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
    """What a chat template that renders earlier turns anew means, so that a request doesn't continue the tokens of the one before it.

    Segments: such a request begins a segment of its own, which is counted. Append: it is an error, found at the first list of tools that a
    template doesn't append to.
    """

    SEGMENTS = "Segments"
    APPEND = "Append"


class EpisodeLimits(ApiModel):
    """Limits of one episode. How many tokens it may draw in all turns is rollout.sampling.maxTokens."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            at_most(field("deadlineSeconds"), field("wallSeconds")),
            "includes the time that deadlineSeconds limits: raise it, or lower deadlineSeconds",
            "wallSeconds",
        ),
    )

    max_turns: int = Field(
        default=64, ge=1, le=10_000, description="Requests that the model answers; further ones are refused."
    )
    max_segments: int = Field(
        default=16,
        ge=1,
        le=1024,
        description="Token sequences that its requests may begin, such as after a compaction or for a sub-agent; requests that would begin "
        "more are refused.",
    )
    max_computed_tokens: int | None = Field(
        default=None,
        ge=1,
        le=2**31 - 1,
        description="Tokens of all its segments together, context included: what the trainer computes for the sample. "
        f"Default: {COMPUTED_CONTEXTS} times model.maxLength.",
    )
    deadline_seconds: Seconds = Field(
        default=600,
        ge=1,
        description="Seconds in the environment: those in which it doesn't wait for the model. An episode that takes longer is a timeout of "
        "its reward (timeoutScore of the reward of kind Episode).",
    )
    wall_seconds: Seconds = Field(
        default=14_400,
        ge=1,
        description="Seconds in all. An episode that takes longer is lost, and played again; after three the group is dropped.",
    )
    memory: Quantity = Field(default="512Mi", description="What all processes of an episode may hold.")
    processes: int = Field(default=64, ge=1, le=4096, description="Processes and threads of an episode.")
    file_size: Quantity = Field(
        default="256Mi", description="What an episode may write, to one file and in its directory in all."
    )


class EnvironmentSpec(ApiModel):
    """A program that plays one episode and says what it was worth. The model is an OpenAI-compatible endpoint, which records tokens.

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
        description="Pool of environmentPools that plays it. Required if there are several; with one pool, that one.",
    )
    domains: list[ColumnName] = Field(
        default_factory=list,
        max_length=32,
        description="Plays only rows of these domains (column dataset.columns.domain); empty means all. Exactly one environment has to match "
        "a row.",
        json_schema_extra={LIST_TYPE: "set"},
    )
    columns: list[ColumnName] | None = Field(
        default=None,
        max_length=64,
        description="Columns of the row that it gets as its `task`. Default: all but the ground truth (dataset.columns.groundTruth), columns "
        f"with test cases ({', '.join(sorted(TEST_COLUMNS))}), and those in rewards[].sandbox.solution.",
        json_schema_extra={LIST_TYPE: "set"},
    )
    history: EnvironmentHistory = EnvironmentHistory.SEGMENTS
    limits: EpisodeLimits = Field(default_factory=EpisodeLimits)


class EnvironmentPoolSpec(PoolSpec):
    """Pods that play episodes. A group's episodes begin in order, each as soon as a pod of the pool has room for it."""

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
        description="Fewest pods that the job's driver may do with, when it needs fewer than replicas. Default: 1.",
    )
    episodes_per_pod: int = Field(
        default=16, ge=1, le=MAX_EPISODES_PER_POD, description="Episodes that are played at once in one pod."
    )
    template: ObjectName | None = Field(
        default=None,
        description="Entry of environmentTemplates in the runtime template (runtimeRef) that the pool's pods are made with: image, memory, "
        "network and so on. Default: none, so they are made as roles.environment says.",
    )

    @property
    def at_once(self) -> int:
        """Episodes that are played at once in one pod."""
        return self.episodes_per_pod


def environments_of(environments: Iterable[EnvironmentSpec] | None, pool: str) -> dict[int, EnvironmentSpec]:
    """Returns the environments that a pool plays, by their places in `environments`.

    They name it or, where it is the only pool, may name none.
    """
    return {
        place: environment for place, environment in enumerate(environments or ()) if environment.pool in {None, pool}
    }


def environment_of(environments: Iterable[EnvironmentSpec], domain: str | None) -> EnvironmentSpec | None:
    """Returns the environment that plays rows of this domain; None if none does. No two have a domain in common, by the spec's rules."""
    return next((each for each in environments if not each.domains or domain in each.domains), None)


def task_of(
    environment: EnvironmentSpec, field: str, columns: Mapping[str, Any], withheld: Collection[str]
) -> dict[str, Any]:
    """Returns what an environment gets of a row with these columns; `field` is its spec path.

    Rule: the columns that it lists; else all that are neither `withheld` (`withheld_columns`) nor in TEST_COLUMNS.

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
    """Returns the columns from which a row's answer could be read: with the ground truth, or a program that passes all tests.

    Rule: of a path into a column, such as `reward_model.ground_truth`, both a column of that name and the one that it leads into.
    """
    paths = [ground_truth, *(reward.sandbox.solution for reward in rewards if reward.sandbox)]
    return frozenset(name for path in paths if path for name in (path, path.partition(".")[0]))
