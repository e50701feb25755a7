"""Adapts reward functions of all styles to one call: `Scorer`.

Sources of the signatures: verl `compute_score(data_source, solution_str, ground_truth, extra_info)` (verl docs, "Implement reward
function for dataset"); TRL `reward(prompts, completions, **columns) -> list` (TRL docs, "Using a custom reward function").
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from longboat_crds.reasons import Reason
from longboat_crds.reward_style import RewardStyle
from longboat_runtime.problems import SpecProblem
from longboat_runtime.reward.function import CONFIG_MAPS, RewardFunction, load_function
from longboat_runtime.reward.result import RewardResult, RewardSample, as_result

# Returns None if the function doesn't apply to the sample. Raises whatever the function raises.
Scorer = Callable[[RewardSample], RewardResult | None]


def load_scorer(reward: RewardFunction, field: str, config_maps: Path = CONFIG_MAPS) -> Scorer:
    """Loads the function of `reward` in its style, with its parameters bound. Raises SpecProblem if it can't be found or called."""
    if reward.style is RewardStyle.REASONING_GYM:
        # Imported only here: it imports pydantic, which makes every fork more expensive.
        from longboat_runtime.reward.gym_scorer import gym_scorer

        return gym_scorer(reward.parameters, field)
    function = load_function(reward, field, config_maps)
    adapter = _ADAPTERS[reward.style]
    _check_signature(function, reward, adapter(_EXAMPLE), field)

    def score(sample: RewardSample) -> RewardResult | None:
        positional, named = adapter(sample)
        if reward.style is RewardStyle.TRL:
            named = _accepted(function, named)
        value = function(*positional, **{**named, **reward.parameters})
        if inspect.isawaitable(value):
            value = _awaited(value)
        return as_result(_score_of(value, reward.style))

    return score


Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_EXAMPLE = RewardSample(text="", prompt="")

_SIGNATURES = {
    RewardStyle.LONGBOAT: "reward(sample)",
    RewardStyle.VERL: "compute_score(data_source, solution_str, ground_truth, extra_info)",
    RewardStyle.TRL: "reward(prompts, completions, **columns)",
}


def _check_signature(function: Callable[..., Any], reward: RewardFunction, arguments: Arguments, field: str) -> None:
    """Raises SpecProblem if the function can't be called in its style.

    The columns of a row aren't known yet, so a TRL function may have more parameters than are bound here.
    """
    positional, named = arguments
    signature = inspect.signature(function)
    try:
        if reward.style is RewardStyle.TRL:
            signature.bind_partial(*positional, **{**_accepted(function, named), **reward.parameters})
        else:
            signature.bind(*positional, **{**named, **reward.parameters})
    except TypeError as error:
        raise SpecProblem(
            Reason.REWARD_FUNCTION_INVALID,
            field,
            f"It can't be called in the style {reward.style.value}: {error}. The signature must be {_SIGNATURES[reward.style]}; "
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
    """A batch of one. The prompt and completion of a conversational row are messages."""
    columns = {
        name: [value]
        for name, value in sample.columns.items()
        if name not in ("prompt", "completion", "prompts", "completions")
    }
    if sample.messages is None:
        return (), {"prompts": [sample.prompt], "completions": [sample.text], **columns}
    answer = [{"role": "assistant", "content": sample.text}]
    return (), {"prompts": [list(sample.messages)], "completions": [answer], **columns}


_ADAPTERS: Mapping[RewardStyle, Callable[[RewardSample], Arguments]] = {
    RewardStyle.LONGBOAT: lambda sample: ((sample,), {}),
    RewardStyle.VERL: _verl,
    RewardStyle.TRL: _trl,
}


def _accepted(function: Callable[..., Any], named: dict[str, Any]) -> dict[str, Any]:
    """TRL passes every column; a function without `**kwargs` gets only those that it names."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return named
    return {name: value for name, value in named.items() if name in parameters}


def _score_of(value: Any, style: RewardStyle) -> Any:
    """The score in a returned value: verl's dict holds it under `score`, TRL's list has one entry per completion, here one."""
    if style is RewardStyle.VERL and isinstance(value, Mapping):
        if "score" not in value:
            raise TypeError(f"compute_score returned a dict without `score` (it has {', '.join(map(str, value))})")
        return value["score"]
    if style is RewardStyle.TRL:
        values = list(value)
        if len(values) != 1:
            raise TypeError(f"the reward function returned {len(values)} rewards for 1 completion")
        return values[0]
    return value


def _awaited(value: Awaitable[Any]) -> Any:
    # Imported only here: few functions need a loop, and a process that has imported asyncio is more expensive to fork.
    import asyncio

    async def wait() -> Any:
        return await value

    return asyncio.run(wait())
