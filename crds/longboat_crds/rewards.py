"""`spec.rewards`: what a response is worth."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from longboat_crds.base import (
    LIST_TYPE,
    READER_DEFAULT,
    ApiModel,
    ColumnName,
    CpuQuantity,
    ObjectName,
    Opaque,
    PoolName,
    Quantity,
)
from longboat_crds.expressions import (
    Expression,
    at_most,
    both,
    choose,
    constant,
    cores,
    either,
    equals,
    exactly_one,
    field,
    field_or,
    if_present,
    implies,
    negation,
    one_of,
    present,
    unfilled,
)
from longboat_crds.functions import ConfigMapFunction, FunctionPath
from longboat_crds.pools import PoolSpec
from longboat_crds.quantities import millicores
from longboat_crds.reward_kinds import (
    Credit,
    RewardBatch,
    RewardIsolation,
    RewardKind,
    RewardRole,
    RewardSignature,
    TestCaseFormat,
)
from longboat_crds.rules import FieldError, Removed, Rule

# The program and its arguments; `{file}` and `{directory}` stand for the file of the response, and where it lies.
Command = Annotated[list[Annotated[str, Field(min_length=1, max_length=1024)]], Field(min_length=1, max_length=64)]


class SandboxSpec(ApiModel):
    """How the program in a response is run: the last fenced code block, or the whole response if it has none.

    Limits but `compileTimeoutSeconds` and `maxCases` are those of one test case, with all processes that it starts. Its time limit is
    `timeoutSeconds` of the reward.
    """

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            implies(present("compileCommand"), present("runCommand")),
            'nothing says how what compileCommand makes is run: give it, such as ["{directory}/program"]',
            "runCommand",
            FieldError.REQUIRED,
        ),
        Rule(
            implies(
                present("runCommand"),
                negation(one_of(field("format"), [TestCaseFormat.HUMAN_EVAL.value, TestCaseFormat.PYTEST.value])),
            ),
            "tests of these formats call Python: leave out runCommand and compileCommand, or set another format",
            "format",
        ),
    )

    format: TestCaseFormat = TestCaseFormat.AUTO
    file_name: str = Field(
        default="main.py",
        max_length=64,
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$",
        description="What the program's file is called, where the commands name it as `{file}`.",
    )
    compile_command: Command | None = Field(
        default=None,
        description="Command that makes the program out of `{file}`, once for each response, such as "
        '`[g++, -O2, -o, "{directory}/program", "{file}"]`. A response that cannot be compiled is wrong.',
        json_schema_extra={LIST_TYPE: "atomic"},
    )
    compile_timeout_seconds: float = Field(
        default=30.0, gt=0.0, le=3600.0, description="A response that takes longer to compile counts as a timeout."
    )
    run_command: Command | None = Field(
        default=None,
        description='Command that runs the program, such as `["{directory}/program"]` or `[node, "{file}"]`. Default: the program is '
        "Python, run by the version that the graders have, in a fork of a process that has started already.",
        json_schema_extra={LIST_TYPE: "atomic"},
    )
    solution: ColumnName | None = Field(
        default=None, description="Column with a program that passes all test cases, for a canary (see `canary`)."
    )
    credit: Credit = Credit.ALL_OR_NOTHING
    max_cases: int = Field(
        default=20, ge=1, le=10_000, description="How many test cases of a row are run at most: the first ones."
    )
    memory: Quantity = Field(default="512Mi", description="What all processes of a case may hold.")
    processes: int = Field(default=64, ge=1, le=4096, description="Processes and threads of a case.")
    file_size: Quantity = Field(default="64Mi", description="What a case may write, to one file and in all.")
    output_size: Quantity = Field(default="4Mi", description="What a case may print, or a function may return.")


_SCORER = equals(field("kind"), constant(RewardKind.REASONING_GYM.value))
_FUNCTION = equals(field("kind"), constant(RewardKind.FUNCTION.value))
_TRL = equals(field("signature"), constant(RewardSignature.TRL.value))
_SANDBOX = equals(field("kind"), constant(RewardKind.SANDBOX.value))
_EPISODE = equals(field("kind"), constant(RewardKind.EPISODE.value))
# The limit of a grade unless the spec says otherwise, in seconds.
GRADE_SECONDS = 30.0


class LearnedTimeout(ApiModel):
    """Grades are killed earlier than at the hard limit, after a time that is learned from what correct responses took.

    A limit is `factor` times what 39 of 40 correct runs of a problem (a row of the dataset) are expected to stay below, between
    `minSeconds` and `timeoutSeconds`. A response is correct if the reward gives it more than 0. With kind Sandbox the limit is of each
    test case, and a response is correct if it passes all.
    """

    factor: float = Field(default=1.5, ge=1.0, le=100.0, description="Limit over what a problem's correct runs take.")
    min_seconds: float = Field(default=2.0, gt=0.0, le=3600.0, description="No limit is lower.")
    audit_fraction: float = Field(
        default=0.02,
        gt=0.0,
        le=1.0,
        description="Share of grades that run to the hard limit all the same: by them is known how many kills are wrong.",
    )


# How often canaries are graded unless the spec says it, in steps.
CANARY_STEPS = 10


class CanarySpec(ApiModel):
    """Responses whose worth is known: a right one and a wrong one, as Jinja templates over a row's columns.

    They are graded before the first step and every `everySteps` steps, beside the samples. The job is reported as RewardSuspect if the
    reward can't tell them apart, gives an empty response as much as the right one, or gives one response two scores.
    """

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            either(
                both(present("right"), present("wrong")), both(negation(present("right")), negation(present("wrong")))
            ),
            "a canary needs a right and a wrong response: give both templates, or leave both out",
            "wrong",
            FieldError.REQUIRED,
        ),
    )

    right: str | None = Field(
        default=None,
        min_length=1,
        max_length=8192,
        description="Template of a right response, such as the column with the answer in the tags that the reward looks for.",
    )
    wrong: str | None = Field(
        default=None,
        min_length=1,
        max_length=8192,
        description="Template of a wrong response in the same form, preferably one that a careless check would "
        "accept, such as the answer with one more digit.",
    )
    every_steps: int = Field(
        default=CANARY_STEPS, ge=0, le=10_000_000, description="Steps from one check to the next; 0 checks nothing."
    )


# Fields that say how a response is graded, each with what it is unless the spec says otherwise.
_OF_GRADES: tuple[tuple[str, Expression], ...] = (
    ("function", negation(present("function"))),
    ("configMap", negation(present("configMap"))),
    ("signature", equals(field("signature"), constant(RewardSignature.LONGBOAT.value))),
    ("isolation", equals(field("isolation"), constant(RewardIsolation.AUTO.value))),
    ("specialTokens", negation(field_or("specialTokens", False))),
    ("parameters", unfilled("parameters")),
    ("pool", negation(present("pool"))),
    ("canary", negation(present("canary"))),
    ("learnedTimeout", negation(present("learnedTimeout"))),
)
_OF_EPISODES = (
    *(
        Rule(
            implies(_EPISODE, unset),
            "doesn't apply to kind Episode, which the environment scores: leave it out",
            name,
            FieldError.FORBIDDEN,
        )
        for name, unset in _OF_GRADES
    ),
    Rule(
        implies(_EPISODE, equals(field("timeoutSeconds"), constant(GRADE_SECONDS))),
        "an episode's time is limited by environments[].limits.deadlineSeconds: leave timeoutSeconds out",
        "timeoutSeconds",
        FieldError.FORBIDDEN,
    ),
)


class RewardSpec(ApiModel):
    """One reward. A sample's reward is the weighted sum over all of them."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            choose(_SCORER, both(negation(present("function")), negation(present("configMap"))), constant(True)),
            "kind ReasoningGym uses the task's own scorer: leave out function and configMap",
            "function",
            FieldError.FORBIDDEN,
        ),
        Rule(
            choose(_FUNCTION, exactly_one("function", "configMap"), constant(True)),
            "give exactly one of function and configMap",
            "function",
            FieldError.REQUIRED,
        ),
        Rule(
            either(negation(_SCORER), equals(field("signature"), constant(RewardSignature.LONGBOAT.value))),
            "kind ReasoningGym calls no function: leave out signature",
            "signature",
            FieldError.FORBIDDEN,
        ),
        Rule(
            implies(present("batch"), _TRL),
            "only TRL functions take a batch: leave it out, or set signature to TRL",
            "batch",
            FieldError.FORBIDDEN,
        ),
        Rule(
            implies(
                both(_TRL, present("learnedTimeout")),
                both(present("batch"), equals(field("batch"), constant(RewardBatch.SAMPLE.value))),
            ),
            "timeouts are learned from single responses: set batch to Sample, or leave out learnedTimeout",
            "batch",
            FieldError.REQUIRED,
        ),
        Rule(
            implies(
                field_or("tokenIds", False),
                both(_FUNCTION, equals(field("signature"), constant(RewardSignature.LONGBOAT.value))),
            ),
            "only functions with signature Longboat get sample.token_ids: leave it out",
            "tokenIds",
            FieldError.FORBIDDEN,
        ),
        Rule(
            implies(field_or("factory", False), _FUNCTION),
            "only kind Function takes a factory: leave it out",
            "factory",
            FieldError.FORBIDDEN,
        ),
        Rule(
            if_present(
                "learnedTimeout", lambda _: at_most(field("learnedTimeout.minSeconds"), field("timeoutSeconds"))
            ),
            "no limit exceeds timeoutSeconds: lower learnedTimeout.minSeconds, or raise timeoutSeconds",
            "learnedTimeout.minSeconds",
        ),
        Rule(
            implies(_SANDBOX, both(negation(present("function")), negation(present("configMap")))),
            "kind Sandbox runs the response against the row's test cases: leave out function and configMap",
            "function",
            FieldError.FORBIDDEN,
        ),
        Rule(
            implies(_SANDBOX, equals(field("signature"), constant(RewardSignature.LONGBOAT.value))),
            "kind Sandbox calls no function: leave out signature",
            "signature",
            FieldError.FORBIDDEN,
        ),
        Rule(
            implies(_SANDBOX, negation(equals(field("isolation"), constant(RewardIsolation.SHARED.value)))),
            "kind Sandbox runs every test case in a process of its own: leave out isolation",
            "isolation",
            FieldError.FORBIDDEN,
        ),
        *_OF_EPISODES,
        Rule(
            implies(present("sandbox"), _SANDBOX),
            "is for kind Sandbox: leave it out, or set kind to Sandbox",
            "sandbox",
            FieldError.FORBIDDEN,
        ),
        Rule(
            implies(_SANDBOX, present("sandbox")),
            "kind Sandbox needs it: {} takes all defaults",
            "sandbox",
            FieldError.REQUIRED,
        ),
        Rule(
            negation(
                both(present("canary"), present("role"), equals(field("role"), constant(RewardRole.SHAPING.value)))
            ),
            "a reward with role Shaping doesn't tell right from wrong: leave canary out, or set role to Task",
            "canary",
            FieldError.FORBIDDEN,
        ),
        Rule(
            if_present(
                "canary",
                lambda _: either(
                    negation(_FUNCTION),
                    present("canary.right"),
                    equals(field("canary.everySteps"), constant(0)),
                ),
            ),
            "only ReasoningGym and Sandbox have canaries of their own: give right and wrong, or leave canary out",
            "canary.right",
            FieldError.REQUIRED,
        ),
        Rule(
            negation(
                both(present("solvedAt"), present("role"), equals(field("role"), constant(RewardRole.SHAPING.value)))
            ),
            "a reward with role Shaping doesn't tell whether a response is right: leave solvedAt out, or set role to Task",
            "solvedAt",
            FieldError.FORBIDDEN,
        ),
    )

    name: ObjectName = Field(description="Name of the reward in metrics; no two rewards share one.")
    style: Annotated[str | None, Removed("use signature or, for ReasoningGym, kind")] = Field(
        default=None, max_length=16
    )
    kind: RewardKind = RewardKind.FUNCTION
    signature: RewardSignature = RewardSignature.LONGBOAT
    function: FunctionPath | None = Field(default=None, description="`module:function`, or `/path/file.py:function`.")
    config_map: ConfigMapFunction | None = None
    factory: bool = Field(
        default=False,
        description="Calls the function once with `parameters`; it returns the reward function, like TRL's `get_soft_overlong_punishment`.",
        json_schema_extra={READER_DEFAULT: True},
    )
    sandbox: SandboxSpec | None = None
    parameters: Opaque = Field(default_factory=dict, description="Keyword arguments passed to the function.")
    role: RewardRole | None = Field(
        default=None,
        description="Which reward tells whether a response is right. Several rewards may have role Task if no two of them grade the same "
        "domain. Default: Task for kind Episode; Shaping if another reward has role Task; else Task, or the weighted sum if several rewards "
        "grade the same rows.",
    )
    solved_at: float | None = Field(
        default=None,
        ge=-1e6,
        le=1e6,
        description="Score, before the weight, from which on a response is right. Default: 1.0; accuracy and pass@k are withheld once a "
        "function without it gives more.",
    )
    canary: CanarySpec | None = Field(
        default=None,
        description="Responses that show whether the reward tells right from wrong. Default: for ReasoningGym the row's answer, for Sandbox "
        "the program in sandbox.solution; else none, as in a job with environments.",
    )
    batch: RewardBatch | None = Field(
        default=None,
        description="For signature TRL: what the function is given in one call. Default: Group.",
    )
    token_ids: bool = Field(
        default=False,
        description="Passes token ids to the function as `sample.token_ids`. TRL functions get them if they take `completion_ids`.",
        json_schema_extra={READER_DEFAULT: True},
    )
    special_tokens: bool = Field(
        default=False,
        description="Keeps special tokens, such as `<|im_end|>`, in the text that this reward gets.",
        json_schema_extra={READER_DEFAULT: True},
    )
    isolation: RewardIsolation = RewardIsolation.AUTO
    pool: PoolName | None = Field(
        default=None,
        description="Pool of rewardPools that grades it. Required if there are several; with one pool, that one.",
    )
    weight: float = Field(default=1.0, ge=-1e6, le=1e6, description="Factor of this reward in the sum.")
    timeout_seconds: float = Field(
        default=GRADE_SECONDS,
        gt=0.0,
        le=3600.0,
        description="A grade that takes longer is killed and counted as a timeout; time in which it waits for a CPU doesn't count. "
        "With kind Sandbox the limit of each test case.",
    )
    learned_timeout: LearnedTimeout | None = Field(
        default=None, description="Kill grades earlier, after a learned time. Default: at timeoutSeconds only."
    )
    timeout_score: float | None = Field(
        default=None,
        ge=-1e6,
        le=1e6,
        description="Score of a grade that timed out; like any score it is multiplied by weight and added to those of the other "
        "rewards. Default: the least that this reward added to any sample of the step's batch, but at most 0, so that being slow "
        "never pays.",
    )
    domains: list[ColumnName] = Field(
        default_factory=list,
        max_length=64,
        description="Grade only rows of these domains (column dataset.columns.domain); empty means all.",
        json_schema_extra={LIST_TYPE: "set"},
    )

    @property
    def declared_role(self) -> RewardRole | None:
        """The role that the spec gives it, or its kind implies; None: it depends on the other rewards."""
        return self.role or (RewardRole.TASK if self.kind is RewardKind.EPISODE else None)

    @property
    def grades_groups(self) -> bool:
        """Whether it is given all responses to a prompt at once."""
        return self.signature is RewardSignature.TRL and self.batch is not RewardBatch.SAMPLE

    @model_validator(mode="before")
    @classmethod
    def _read_style(cls, value: Any) -> Any:
        """Reads a stored reward with `style`, which became `kind` and `signature`."""
        if isinstance(value, dict) and (style := value.get("style")) is not None:
            value = {name: part for name, part in value.items() if name != "style"}
            value["kind" if style == RewardKind.REASONING_GYM else "signature"] = style
        return value


DEFAULT_POOL = "default"
# What a pool keeps for each of its pods unless it says otherwise.
POD_MIN_MILLICORES = 100
# A kubelet enforces no CPU quota below 1 ms in 100 ms.
LEAST_POD_MILLICORES = 10


class RewardCpuSpec(ApiModel):
    """CPUs of the graders of all reward pools together; they move to the pools that can use them."""

    total: CpuQuantity = Field(
        description="CPUs of all reward pods' `graders` containers together, those of pods that are being deleted included. It is never "
        "exceeded, not even for a moment."
    )


class PoolCpuSpec(ApiModel):
    """Bounds of a pool's part of rewardCpu.total, for all of its pods together."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            either(negation(both(present("min"), present("max"))), at_most(cores(field("min")), cores(field("max")))),
            "is less than min: raise it, or lower min",
            "max",
        ),
    )

    min: CpuQuantity | None = Field(
        default=None,
        description="CPUs that the pool keeps, whatever others ask for. Default: 100m a pod, but at most max.",
    )
    max: CpuQuantity | None = Field(
        default=None, description="CPUs that the pool never has more than. Default: no bound of its own."
    )


class RewardPoolSpec(PoolSpec):
    """Reward pods with graders in them, for the rewards of the pool. One queue feeds all pods of a pool."""

    graders_per_pod: int = Field(default=1, ge=1, le=256, description="Grades that run at once in one pod.")
    template: ObjectName | None = Field(
        default=None,
        description="Entry of rewardTemplates in the runtime template (runtimeRef) that the pool's pods are made with: image, memory, "
        "network and so on. Default: none, so they are made as roles.reward says.",
    )
    cpu: PoolCpuSpec | None = Field(
        default=None, description="Only with rewardCpu: bounds of the pool's part of its total."
    )

    @property
    def at_once(self) -> int:
        """Grades that run at once in one pod."""
        return self.graders_per_pod

    @property
    def processes(self) -> int:
        """Grades that run at once in all of its pods."""
        return self.replicas * self.graders_per_pod

    def cpu_bounds(self, total: int) -> tuple[int, int]:
        """Returns the fewest and most millicores of the pool, given the total of rewardCpu."""
        bounds = self.cpu or PoolCpuSpec()
        most = min(millicores(bounds.max), total) if bounds.max else total
        least = millicores(bounds.min) if bounds.min else min(POD_MIN_MILLICORES * self.replicas, most)
        return least, most


def default_pools() -> list[RewardPoolSpec]:
    """Returns the pools of a job that names none."""
    return [RewardPoolSpec(name=DEFAULT_POOL)]


def rewards_of(rewards: Sequence[RewardSpec], pool: str) -> dict[int, RewardSpec]:
    """Returns the rewards that a pool grades, by their places in `rewards`.

    They name it or, where it is the only pool, may name none. Those of kind Episode are graded in no pool.
    """
    return {
        place: reward
        for place, reward in enumerate(rewards)
        if reward.pool in {None, pool} and reward.kind is not RewardKind.EPISODE
    }


def graded_pools(pools: Sequence[RewardPoolSpec], rewards: Sequence[RewardSpec]) -> list[RewardPoolSpec]:
    """Returns the reward pools that have something to grade. If all rewards are of kind Episode, the default pool has nothing."""
    return [pool for pool in pools if rewards_of(rewards, pool.name)]
