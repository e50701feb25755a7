"""Adapts reward functions of all signatures, and reasoning-gym's scorers, to one call: `Scorer`.

Sources of the signatures: verl `compute_score(data_source, solution_str, ground_truth, extra_info)` (verl docs, "Implement reward
function for dataset"); TRL `reward(prompts, completions, **columns) -> list` (TRL docs, "Using a custom reward function").
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_crds.reward_kinds import RewardKind, RewardSignature
from longboat_graders.function import CONFIG_MAPS, load_function
from longboat_graders.messages import RewardFunction
from longboat_graders.result import RewardResult, RewardSample, as_result

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable
    from typing import Any

# Returns None if the function doesn't apply to the sample. Raises whatever the function raises.
Scorer = Callable[[RewardSample], RewardResult | None]


def load_scorer(reward: RewardFunction, field: str, config_maps: str | os.PathLike[str] = CONFIG_MAPS) -> Scorer:
    """Loads what scores for `reward`, with its parameters bound. Raises SpecProblem if it can't be found or called."""
    if reward.kind is RewardKind.REASONING_GYM:
        # Imported only here: it imports pydantic, which makes every fork more expensive.
        from longboat_graders.gym import gym_scorer

        return gym_scorer(reward.parameters, field)
    function = load_function(reward, field, config_maps)
    adapter, signature, parameters = _ADAPTERS[reward.signature], reward.signature, reward.parameters
    _check_signature(function, reward, adapter(_EXAMPLE), field)
    accepted = _accepted(function) if signature is RewardSignature.TRL else None
    score_of = _SCORES.get(signature)

    def score(sample: RewardSample) -> RewardResult | None:
        positional, named = adapter(sample)
        if accepted is not None:
            named = {name: value for name, value in named.items() if name in accepted}
        value = function(*positional, **{**named, **parameters})
        if not isinstance(value, (float, int, RewardResult)) and inspect.isawaitable(value):
            value = _awaited(value)
        return as_result(value if score_of is None else score_of(value))

    return score


if TYPE_CHECKING:
    Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_EXAMPLE = RewardSample(text="", prompt="")

_SIGNATURES = {
    RewardSignature.LONGBOAT: "reward(sample)",
    RewardSignature.VERL: "compute_score(data_source, solution_str, ground_truth, extra_info)",
    RewardSignature.TRL: "reward(prompts, completions, **columns)",
}


def _check_signature(function: Callable[..., Any], reward: RewardFunction, arguments: Arguments, field: str) -> None:
    """Raises SpecProblem if the function can't be called as its signature says.

    The columns of a row aren't known yet, so a TRL function may have more parameters than are bound here.
    """
    positional, named = arguments
    try:
        # Functions of extension modules may have none: ValueError.
        signature = inspect.signature(function)
        if reward.signature is RewardSignature.TRL:
            accepted = _accepted(function)
            passed = {name: value for name, value in named.items() if accepted is None or name in accepted}
            signature.bind_partial(*positional, **{**passed, **reward.parameters})
        else:
            signature.bind(*positional, **{**named, **reward.parameters})
    except (TypeError, ValueError) as error:
        raise SpecProblem(
            Reason.REWARD_FUNCTION_INVALID,
            field,
            f"It can't be called with the signature {reward.signature.value}: {error}. It must be {_SIGNATURES[reward.signature]}; "
            "`parameters` are passed by name.",
        ) from error


def _verl(sample: RewardSample) -> Arguments:
    columns = sample.columns
    return (), {
        "data_source": columns.get("data_source", sample.domain),
        "solution_str": sample.text,
        "ground_truth": sample.ground_truth,
        "extra_info": columns.get("extra_info"),
    }


def _trl(sample: RewardSample) -> Arguments:
    """Returns the arguments for a batch of one. The prompt and completion of a conversational row are messages."""
    columns = {
        name: [value]
        for name, value in sample.columns.items()
        if name not in ("prompt", "completion", "prompts", "completions")
    }
    if sample.messages is None:
        return (), {"prompts": [sample.prompt], "completions": [sample.text], **columns}
    answer = [{"role": "assistant", "content": sample.text}]
    return (), {"prompts": [list(sample.messages)], "completions": [answer], **columns}


_ADAPTERS: Mapping[RewardSignature, Callable[[RewardSample], Arguments]] = {
    RewardSignature.LONGBOAT: lambda sample: ((sample,), {}),
    RewardSignature.VERL: _verl,
    RewardSignature.TRL: _trl,
}


def _accepted(function: Callable[..., Any]) -> frozenset[str] | None:
    """Returns the names of the arguments that a function takes; None if it has `**kwargs` and takes every column, as TRL passes them."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    return frozenset(parameters)


def _verl_score(value: Any) -> Any:
    """Takes the score out of verl's dict; any other value is the score. Raises TypeError if a dict has no `score`."""
    if not isinstance(value, Mapping):
        return value
    if "score" not in value:
        raise TypeError(f"compute_score returned a dict without `score` (it has {', '.join(map(str, value))})")
    return value["score"]


def _trl_score(value: Any) -> Any:
    """Takes the score out of TRL's list, which has one entry for each completion, here one. Raises TypeError if it has another number."""
    values = list(value)
    if len(values) != 1:
        raise TypeError(f"the reward function returned {len(values)} rewards for 1 completion")
    return values[0]


_SCORES: Mapping[RewardSignature, Callable[[Any], Any]] = {
    RewardSignature.VERL: _verl_score,
    RewardSignature.TRL: _trl_score,
}


def _awaited(value: Awaitable[Any]) -> Any:
    # Imported only here: few functions need a loop, and a process that has imported asyncio is more expensive to fork.
    import asyncio

    async def wait() -> Any:
        return await value

    return asyncio.run(wait())
