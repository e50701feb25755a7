"""Defines what a reward worker and the graders of its pod say to each other over their Unix socket.

Requests are {id, op, ...}; each is answered by {id, ...}:
    load  {function, field, isolation, reason}    -> {problem: null, isolation, reason, footprint, token_ids, sources},
                                                     capacity, or {problem: [reason, field, message, fatal]}
    grade {reward: name, timeout, seed, own} + sample, or {row, responses} for one that is given all responses to a prompt
                                                  -> {outcome}; `own` is a learned limit of own seconds, or isn't there
    state {}                                      -> {processes, running, landlock, unenforced, rewards: {name: ...}}, capacity
A grade that nobody wants any more is ended by {id, op: cancel} with its id; neither is answered then.
That a grade begins is told by {id, begun}: should these graders end, it may be the cause.
A reward that falls back to PerGrade is told of without being asked: {reward, isolation, reason}; and, every so often while there is
something to grade, the capacity: {at_once, cpu_seconds}, see `quota.Quota`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum

from longboat_crds.reward_kinds import Credit, RewardIsolation, RewardKind, RewardSignature, TestCaseFormat
from longboat_graders.result import plain_metrics

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from longboat_crds.rewards import RewardSpec, SandboxSpec

# Longest message of an outcome, in characters.
MESSAGE_CHARACTERS = 2000
# The seconds that a sandbox's case runner may need beyond those of its programs, to read long test cases, start and compare.
_OUTSIDE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class FunctionFile:
    """A Python file in a ConfigMap, and the function in it."""

    config_map: str
    key: str
    function: str


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """`rewards[].sandbox` with sizes in bytes. Without a `run_command` programs are Python."""

    format: TestCaseFormat
    file_name: str
    compile_command: tuple[str, ...] | None
    compile_seconds: float
    run_command: tuple[str, ...] | None
    credit: Credit
    max_cases: int
    memory: int
    processes: int
    file_size: int
    output_size: int

    @classmethod
    def from_spec(cls, spec: SandboxSpec) -> SandboxSettings:
        """Takes the settings from a spec."""
        from longboat_crds.quantities import in_bytes

        return cls(
            spec.format,
            spec.file_name,
            None if spec.compile_command is None else tuple(spec.compile_command),
            spec.compile_timeout_seconds,
            None if spec.run_command is None else tuple(spec.run_command),
            spec.credit,
            spec.max_cases,
            in_bytes(spec.memory),
            spec.processes,
            in_bytes(spec.file_size),
            in_bytes(spec.output_size),
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SandboxSettings:
        """Reads what `asdict` returned, also after a way through JSON."""
        commands = {name: value[name] and tuple(value[name]) for name in ("compile_command", "run_command")}
        return cls(
            **{**value, **commands, "format": TestCaseFormat(value["format"]), "credit": Credit(value["credit"])}
        )

    def longest_seconds(self, seconds: float) -> float:
        """Returns how many seconds a grade may take whose cases may take `seconds` each.

        It is a bound for what goes wrong outside of programs.
        """
        return self.compile_seconds + (self.max_cases + 1) * seconds + _OUTSIDE_SECONDS


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """`target` is `module:function` or `/path/file.py:function`; None with a `file`, and for ReasoningGym and Sandbox.

    A `factory` returns what is called for each response. With `groups` a call is for all responses to a prompt.
    """

    name: str
    kind: RewardKind
    signature: RewardSignature
    target: str | None
    file: FunctionFile | None
    parameters: Mapping[str, Any]
    sandbox: SandboxSettings | None = None
    factory: bool = False
    groups: bool = False
    token_ids: bool = False

    @classmethod
    def from_spec(cls, reward: RewardSpec) -> RewardFunction:
        """Takes the part of `reward` that says what to call and how."""
        named = reward.config_map
        file = None if named is None else FunctionFile(named.name, named.key, named.function)
        sandbox = None if reward.sandbox is None else SandboxSettings.from_spec(reward.sandbox)
        return cls(
            reward.name,
            reward.kind,
            reward.signature,
            reward.function,
            file,
            reward.parameters,
            sandbox,
            reward.factory,
            reward.grades_groups,
            reward.token_ids,
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as a dict that can be written as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RewardFunction:
        """Reads what `to_json` returned, also after a way through JSON."""
        file = None if value["file"] is None else FunctionFile(**value["file"])
        kind, signature = RewardKind(value["kind"]), RewardSignature(value["signature"])
        sandbox = None if value["sandbox"] is None else SandboxSettings.from_json(value["sandbox"])
        return cls(**{**value, "kind": kind, "signature": signature, "file": file, "sandbox": sandbox})


class OutcomeKind(StrEnum):
    """`samples.GradeKind`, NOT_APPLICABLE for a function that has nothing to say about the sample, and LOST.

    LOST says that the graders went away, or that a program crashed while their container was short of memory.
    """

    SCORED = "scored"
    WRONG_FORMAT = "wrong_format"
    TIMEOUT = "timeout"
    GRADER_ERROR = "grader_error"
    NOT_APPLICABLE = "not_applicable"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class FunctionOutcome:
    """The outcome of one function on one sample, as it travels between graders and driver.

    `score` counts for SCORED and WRONG_FORMAT only. `seconds` is the grade's wall time, `cpu_seconds` what its processes used
    (programs that a function starts may be missing, unless its time is learned from); both are taken by who supervises it. `begun` is of
    a LOST one: whether it was being graded.

    `own_seconds` is there if its time is learned from and was measured: the wall time without what it waited for a CPU, or `cpu_seconds`
    if that is more. `limited` says that a learned limit ended it. Where there are test cases, `own_seconds` are of the one that took
    longest, and `limited` says that one failed because of its limit: with partial credit such a grade may be SCORED.

    `metrics` are those of `RewardResult`. If a function is given all responses to a prompt, `each` has the outcome of each response,
    without times of its own (see `by_sample`). It is empty if the call failed.
    """

    kind: OutcomeKind
    score: float = 0.0
    seconds: float = 0.0
    message: str = ""
    cpu_seconds: float = 0.0
    own_seconds: float | None = None
    limited: bool = False
    begun: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    each: tuple[FunctionOutcome, ...] = ()

    def by_sample(self, count: int) -> list[FunctionOutcome]:
        """Divides the outcome of a call for `count` responses: each has its score, or the call's failure, and an equal share of the time."""
        shares = self.each if len(self.each) == count else (self,) * count
        seconds, cpu_seconds = self.seconds / count, self.cpu_seconds / count
        return [
            replace(
                share,
                seconds=seconds,
                cpu_seconds=cpu_seconds,
                metrics={**self.metrics, **share.metrics},
                each=(),
            )
            for share in shares
        ]

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON object that `from_json` reads; `begun` isn't in it."""
        value = {
            "kind": self.kind,
            "score": self.score,
            "seconds": self.seconds,
            "message": self.message,
            "cpu_seconds": self.cpu_seconds,
        }
        if self.own_seconds is not None:
            value |= {"own_seconds": self.own_seconds, "limited": self.limited}
        if self.metrics:
            value["metrics"] = dict(self.metrics)
        if self.each:
            value["each"] = [share.to_json() for share in self.each]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FunctionOutcome:
        """Reads what `to_json` returned; one that graders say is LOST had begun.

        Raises KeyError, TypeError or ValueError if it isn't one.
        """
        kind, own = OutcomeKind(value["kind"]), value.get("own_seconds")
        return cls(
            kind,
            score=float(value["score"]),
            seconds=float(value.get("seconds", 0.0)),
            message=str(value["message"])[:MESSAGE_CHARACTERS],
            cpu_seconds=float(value.get("cpu_seconds", 0.0)),
            own_seconds=None if own is None else float(own),
            limited=own is not None and bool(value["limited"]),
            begun=kind is OutcomeKind.LOST,
            metrics=plain_metrics(value.get("metrics", {})),
            each=tuple(map(cls._share, value.get("each", ()))),
        )

    @classmethod
    def _share(cls, value: Mapping[str, Any]) -> FunctionOutcome:
        """Reads one of `each`. Raises ValueError for a kind that only a whole call can have."""
        kind = OutcomeKind(value["kind"])
        if kind not in (OutcomeKind.SCORED, OutcomeKind.WRONG_FORMAT, OutcomeKind.NOT_APPLICABLE):
            raise ValueError(f"a response of a group has the outcome {kind}")
        message, metrics = str(value["message"])[:MESSAGE_CHARACTERS], plain_metrics(value.get("metrics", {}))
        return cls(kind, float(value["score"]), message=message, metrics=metrics)


@dataclass(frozen=True, slots=True)
class IsolationInForce:
    """Says how a reward's grades are kept apart now. Where Auto has fallen back to PerGrade, `reason` says why, in one line."""

    isolation: RewardIsolation
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GradersCapacity:
    """Says how many grades a pod's graders run at once now, and the CPU seconds that their container has used.

    The latter is None if it has no CPU quota: then others may use the same cgroup.
    """

    at_once: int
    cpu_seconds: float | None = None
