"""Adapts reward functions of all signatures, and reasoning-gym's scorers, to one call: `Scorer`.

Sources of the signatures: verl `compute_score(data_source, solution_str, ground_truth, extra_info)` (verl docs, "Implement reward
function for dataset"); TRL `reward(prompts, completions, **columns) -> list` (TRL docs, "Using a custom reward function").
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_crds.reward_kinds import RewardKind, RewardSignature
from longboat_graders.function import CONFIG_MAPS, load_function
from longboat_graders.messages import RewardFunction
from longboat_graders.result import GroupResult, RewardResult, RewardSample, as_result, plain_metrics

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from typing import Any

# Returns None if the function doesn't apply to the sample. Raises whatever the function raises.
Scorer = Callable[[RewardSample], RewardResult | None]
# The same for all responses to a prompt, in order.
GroupScorer = Callable[[list[RewardSample]], GroupResult]


def load_scorer(
    reward: RewardFunction, field: str, config_maps: str | os.PathLike[str] = CONFIG_MAPS
) -> Scorer | GroupScorer:
    """Loads what scores for `reward`, with its parameters bound: a GroupScorer if it is given groups.

    Raises SpecProblem if it can't be found or called.
    """
    if reward.kind is RewardKind.REASONING_GYM:
        # Imported only here: it imports pydantic, which makes every fork more expensive.
        from longboat_graders.gym import gym_scorer

        return gym_scorer(reward.parameters, field)
    function, parameters = load_function(reward.target, reward.file, field, config_maps), reward.parameters
    if reward.factory:
        function, parameters = _call_factory(function, parameters, field), {}
    if reward.signature is RewardSignature.TRL:
        return _trl_scorer(function, parameters, field, groups=reward.groups)
    adapter, verl = _ADAPTERS[reward.signature], reward.signature is RewardSignature.VERL
    _check_signature(function, reward.signature, parameters, adapter(_EXAMPLE), field)

    def score(sample: RewardSample) -> RewardResult | None:
        positional, named = adapter(sample)
        value = _awaited(function(*positional, **{**named, **parameters}))
        return _verl_result(value) if verl else as_result(value)

    return score


def takes_token_ids(score: Scorer | GroupScorer, reward: RewardFunction) -> bool:
    """Whether the function that was loaded takes the token ids of responses."""
    return reward.token_ids or bool(getattr(score, "takes_token_ids", False))


if TYPE_CHECKING:
    Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_EXAMPLE = RewardSample(text="", prompt="")

_SIGNATURES = {
    RewardSignature.LONGBOAT: "reward(sample)",
    RewardSignature.VERL: "compute_score(data_source, solution_str, ground_truth, extra_info)",
    RewardSignature.TRL: "reward(prompts, completions, **columns)",
}


def _call_factory(factory: Callable[..., Any], parameters: Mapping[str, Any], field: str) -> Callable[..., Any]:
    """Calls the factory. Raises SpecProblem if that fails, or returns nothing that could be called."""
    try:
        made = factory(**parameters)
    except Exception as error:
        raise SpecProblem(
            Reason.REWARD_FUNCTION_INVALID,
            f"{field}.factory",
            f"Calling the factory with the parameters {', '.join(parameters) or '(none)'} fails: {type(error).__name__}: {error}.",
        ) from error
    if not callable(made):
        raise SpecProblem(
            Reason.REWARD_FUNCTION_INVALID,
            f"{field}.factory",
            f"The factory returns a {type(made).__name__}, not a function. Without `factory: true` the function itself is the reward.",
        )
    function: Callable[..., Any] = made
    return function


def _check_signature(
    function: Callable[..., Any],
    kind: RewardSignature,
    parameters: Mapping[str, Any],
    arguments: Arguments,
    field: str,
) -> None:
    """Raises SpecProblem if the function can't be called as its signature says.

    The columns of a row aren't known yet, so a TRL function may have more parameters than are bound here.
    """
    positional, named = arguments
    try:
        # Functions of extension modules may have none: ValueError.
        signature = inspect.signature(function)
        if kind is RewardSignature.TRL:
            signature.bind_partial(**{**_taken(named, _accepted(function)), **parameters})
        else:
            signature.bind(*positional, **{**named, **parameters})
    except (TypeError, ValueError) as error:
        raise SpecProblem(
            Reason.REWARD_FUNCTION_INVALID,
            field,
            f"It can't be called with the signature {kind.value}: {error}. It must be {_SIGNATURES[kind]}; "
            "`parameters` are passed by name.",
        ) from error


def _verl(sample: RewardSample) -> Arguments:
    """Returns the arguments that verl's naive reward manager passes. `num_turns` are the messages of an episode, None of other samples."""
    columns = sample.columns
    turns = None if sample.turns is None else sum(map(len, sample.conversation))
    extra = {**(columns.get("extra_info") or {}), "num_turns": turns, "rollout_reward_scores": {}}
    return (), {
        "data_source": columns.get("data_source", sample.domain),
        "solution_str": sample.text,
        "ground_truth": sample.ground_truth,
        "extra_info": extra,
    }


_ADAPTERS: Mapping[RewardSignature, Callable[[RewardSample], Arguments]] = {
    RewardSignature.LONGBOAT: lambda sample: ((sample,), {}),
    RewardSignature.VERL: _verl,
}


def _verl_result(value: Any) -> RewardResult | None:
    """Takes the score out of verl's dict, whose other numbers are metrics; any other value is the score.

    Raises TypeError if a dict has no `score`.
    """
    if not isinstance(value, Mapping):
        return as_result(value)
    if "score" not in value:
        raise TypeError(f"compute_score returned a dict without `score` (it has {', '.join(map(str, value))})")
    result, others = as_result(value["score"]), {name: other for name, other in value.items() if name != "score"}
    return result and replace(result, metrics=others)


# --- TRL ---------------------------------------------------------------------------------------------------------------

# Columns that TRL passes under other names, or not at all.
_OWN_COLUMNS = ("prompt", "completion", "completion_ids", "prompts", "completions")
# What a function logs of one response is cut here, in bytes.
_LOGGED_BYTES = 1000


def _trl_scorer(
    function: Callable[..., Any], parameters: Mapping[str, Any], field: str, *, groups: bool
) -> Scorer | GroupScorer:
    """Makes the scorer of a function that is called as TRL's GRPO trainer calls it: with lists of responses to one prompt."""
    accepted = _accepted(function)
    if accepted is not None and "environments" in accepted and "environments" not in parameters:
        raise SpecProblem(
            Reason.REWARD_FUNCTION_INVALID,
            field,
            "It takes `environments`, which Longboat doesn't have. Remove the argument, or set it in `parameters`.",
        )
    _check_signature(function, RewardSignature.TRL, parameters, ((), _trl([_EXAMPLE], _Logged(1))), field)
    scores_ids = accepted is None or "completion_ids" in accepted

    def score(samples: list[RewardSample]) -> GroupResult:
        logged = _Logged(len(samples))
        named = _taken(_trl(samples, logged), accepted)
        values = list(_awaited(function(**{**named, **parameters})))
        if len(values) != len(samples):
            raise TypeError(f"the reward function returned {len(values)} rewards for {len(samples)} completions")
        return GroupResult(
            [logged.with_lines(as_result(value), index) for index, value in enumerate(values)], logged.metrics
        )

    def score_one(sample: RewardSample) -> RewardResult | None:
        group = score([sample])
        return group.results[0] and replace(group.results[0], metrics=group.metrics)

    scorer: Any = score if groups else score_one
    scorer.takes_token_ids = scores_ids
    loaded: Scorer | GroupScorer = scorer
    return loaded


class _Logged:
    """What a function logs during a call for `count` responses: numbers about all of them, and text about each."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._metrics: dict[str, list[float]] = {}
        self._lines: list[list[str]] = [[] for _ in range(count)]

    def metric(self, name: str, value: float) -> None:
        """Takes a metric: TRL's `log_metric`."""
        self._metrics.setdefault(name, []).append(float(value))

    def column(self, column: str, values: Sequence[Any]) -> None:
        """Takes a value for each response: TRL's `log_extra`. Raises ValueError for another number of them."""
        if len(values) != self._count:
            raise ValueError(f"log_extra({column!r}, ...) was given {len(values)} values for {self._count} completions")
        for lines, value in zip(self._lines, values, strict=True):
            lines.append(f"{column}: {value}")

    @property
    def metrics(self) -> dict[str, float]:
        """Means of what was logged by each name."""
        return plain_metrics({name: sum(values) / len(values) for name, values in self._metrics.items()})

    def with_lines(self, result: RewardResult | None, index: int) -> RewardResult | None:
        """Returns the result of a response with the text that was logged about it."""
        if result is None or not self._lines[index]:
            return result
        message = "; ".join(self._lines[index]).encode(errors="replace")[:_LOGGED_BYTES].decode(errors="ignore")
        return replace(result, message=message)


def _trl(samples: Sequence[RewardSample], logged: _Logged) -> dict[str, Any]:
    """Returns the arguments. All responses are to one row.

    Prompts and completions of conversational rows are messages. So are those of episodes: a completion is the last conversation from the
    model's first reply on, with what the environment said to it.
    """
    first = samples[0]
    named: dict[str, Any] = {
        name: [value] * len(samples) for name, value in first.columns.items() if name not in _OWN_COLUMNS
    }
    if first.turns is not None:
        before, replies = zip(*(sample.conversation for sample in samples), strict=True)
        named |= {"prompts": list(before), "completions": list(replies)}
    elif first.messages is None:
        named |= {"prompts": [sample.prompt for sample in samples], "completions": [sample.text for sample in samples]}
    else:
        named |= {
            "prompts": [list(first.messages) for _ in samples],
            "completions": [[{"role": "assistant", "content": sample.text}] for sample in samples],
        }
    return named | {
        "completion_ids": [list(sample.token_ids or ()) for sample in samples],
        "trainer_state": SimpleNamespace(**first.training),
        "log_metric": logged.metric,
        "log_extra": logged.column,
    }


def _taken(named: Mapping[str, Any], accepted: frozenset[str] | None) -> dict[str, Any]:
    """Picks the arguments that a function takes; all of them if `accepted` is None."""
    return {name: value for name, value in named.items() if accepted is None or name in accepted}


def _accepted(function: Callable[..., Any]) -> frozenset[str] | None:
    """Returns the names of the arguments that a function takes; None if it has `**kwargs` and takes every column, as TRL passes them."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    return frozenset(parameters)


def _awaited(value: Any) -> Any:
    if isinstance(value, (float, int, list, RewardResult)) or not inspect.isawaitable(value):
        return value
    # Imported only here: few functions need a loop, and a process that has imported asyncio is more expensive to fork.
    import asyncio

    async def wait() -> Any:
        return await value

    return asyncio.run(wait())
