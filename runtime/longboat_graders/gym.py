"""The tasks of reasoning-gym: how a task is created, and the scorer that comes with it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from longboat_crds.dataset import ReasoningGymSource
from longboat_crds.problems import SpecProblem, suggestion
from longboat_crds.reasons import Reason
from longboat_graders.result import RewardResult, RewardSample

# The column that says which entry of which task a row is, so that the scorer can create the entry again.
ORIGIN = "reasoning_gym"


def create_task(source: ReasoningGymSource, field: str) -> Any:
    """Creates the procedural dataset of `source`. Raises SpecProblem for an unknown task, or a setting that the task lacks or rejects."""
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if source.task not in DATASETS:
        raise SpecProblem(
            Reason.DATASET_NOT_FOUND,
            f"{field}.task",
            f"reasoning-gym has no task {source.task!r}.{suggestion(source.task, DATASETS)} It has {', '.join(sorted(DATASETS))}.",
        )
    settings = [item.name for item in dataclasses.fields(DATASETS[source.task][1])]
    for name in source.config:
        if name not in settings or name in ("seed", "size"):
            raise SpecProblem(
                Reason.DATASET_INVALID,
                f"{field}.config.{name}",
                f"Task {source.task!r} has no setting {name!r}.{suggestion(name, settings)} It has "
                f"{', '.join(sorted(set(settings) - {'seed', 'size'}))}; seed and size are set next to `config`.",
            )
    try:
        return reasoning_gym.create_dataset(source.task, size=source.size, seed=source.seed, **source.config)
    except (AssertionError, TypeError, ValueError) as error:
        raise SpecProblem(
            Reason.DATASET_INVALID, f"{field}.config", f"Task {source.task!r} rejects its settings: {error}"
        ) from error


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
