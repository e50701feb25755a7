"""The scorer that comes with a reasoning-gym task."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from longboat_crds.dataset import ReasoningGymSource
from longboat_crds.reasons import Reason
from longboat_runtime.data.gym import ORIGIN, create_task
from longboat_runtime.problems import SpecProblem
from longboat_runtime.reward.result import RewardResult, RewardSample


def gym_scorer(parameters: Mapping[str, Any], field: str) -> Callable[[RewardSample], RewardResult]:
    """Makes a scorer that calls the task's `score_answer`.

    The one parameter, `tag`, names the tag around the answer (`answer` for `<answer>4</answer>`; the last one counts, a
    response without it has the wrong form). Without a `tag` the whole response is the answer. Raises SpecProblem for a `tag` that is no
    text, and for any other parameter.
    """
    unknown = sorted(set(parameters) - {"tag"})
    if unknown:
        raise SpecProblem(
            Reason.REWARD_FUNCTION_INVALID,
            f"{field}.parameters.{unknown[0]}",
            f"The kind ReasoningGym has no parameter {unknown[0]!r}. It has `tag`.",
        )
    tag = parameters.get("tag")
    if tag is not None and not isinstance(tag, str):
        raise SpecProblem(
            Reason.REWARD_FUNCTION_INVALID,
            f"{field}.parameters.tag",
            f"It is {tag!r}, not a text. Give the name of a tag, in quotes if it looks like something else.",
        )
    pattern = re.compile(rf"<{re.escape(tag)}>(.*?)</{re.escape(tag)}>", re.DOTALL) if tag else None

    def score(sample: RewardSample) -> RewardResult:
        if ORIGIN not in sample.columns:
            raise ValueError(
                "the row is not from reasoning-gym: set spec.dataset.reasoningGym, or another kind of reward"
            )
        origin = sample.columns[ORIGIN]
        answers = pattern.findall(sample.text) if pattern else [sample.text]
        if not answers:
            return RewardResult(0.0, format_ok=False)
        task = _task(ReasoningGymSource.model_validate(origin["source"]).model_dump_json())
        return RewardResult(float(task.score_answer(answers[-1].strip(), task[origin["row"]])))

    # Imported here, once, so that grades needn't.
    import reasoning_gym  # noqa: F401

    return score


@lru_cache(maxsize=16)
def _task(source: str) -> Any:
    return create_task(ReasoningGymSource.model_validate_json(source), "spec.dataset.reasoningGym")
