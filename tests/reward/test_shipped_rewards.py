"""Rewards that TRL and verl ship give what they give when their own trainers call them. Those of verl run where verl is installed."""

from __future__ import annotations

import importlib
import random
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from longboat_crds.problems import SpecProblem
from longboat_crds.rewards import RewardSpec
from longboat_graders.adapters import load_scorer
from longboat_graders.messages import RewardFunction
from longboat_graders.result import GroupResult, RewardSample
from longboat_runtime.reward.canary import CanaryScores, suspicion

RIGHT, WRONG = "The result is \\boxed{42}.", "The result is \\boxed{43}."
TEXTS = [
    RIGHT,
    WRONG,
    f"<think>six times seven</think>{RIGHT}",
    f"<think>six times seven{RIGHT}",
    "",
    "so so so so so so so so so so",
    "42",
    f"{WRONG} Or rather: {RIGHT}",
]
TRL = [
    ("accuracy_reward", None),
    ("reasoning_accuracy_reward", None),
    ("think_format_reward", None),
    ("get_cosine_scaled_reward", {"max_len": 64}),
    ("get_cosine_scaled_reward", {"max_len": 16, "min_value_wrong": -0.5}),
    ("get_repetition_penalty_reward", {"ngram_size": 2, "max_penalty": -0.5}),
    ("get_soft_overlong_punishment", {"max_completion_len": 24, "soft_punish_cache": 8}),
]


def load(signature: str, function: str, **spec: Any) -> Any:
    reward = RewardSpec.model_validate({"name": "r", "signature": signature, "function": function, **spec})
    return load_scorer(RewardFunction.from_spec(reward), "spec.rewards[0]")


def responses(texts: Sequence[str]) -> list[RewardSample]:
    """Responses to one conversational prompt, with a token for each character."""
    messages = [{"role": "user", "content": "What is 6 x 7?"}]
    columns = {"solution": "$42$", "prompt": messages}
    return [
        RewardSample(
            text,
            "What is 6 x 7?",
            "$42$",
            columns=columns,
            messages=messages,
            token_ids=[*map(ord, text)],
            tokens=len(text),
        )
        for text in texts
    ]


def by_trl(name: str, parameters: Mapping[str, Any] | None, texts: Sequence[str]) -> list[float | None]:
    """What the reward returns when called as `GRPOTrainer` does."""
    reward = getattr(importlib.import_module("trl.rewards"), name)
    if parameters is not None:
        reward = reward(**parameters)
    scores: list[float | None] = reward(
        prompts=[[{"role": "user", "content": "What is 6 x 7?"}]] * len(texts),
        completions=[[{"role": "assistant", "content": text}] for text in texts],
        completion_ids=[[*map(ord, text)] for text in texts],
        solution=["$42$"] * len(texts),
        trainer_state=SimpleNamespace(global_step=0, max_steps=1, epoch=0.0),
        log_extra=lambda name, values: None,
        log_metric=lambda name, value: None,
    )
    return scores


@pytest.mark.parametrize(("name", "parameters"), TRL, ids=str)
@pytest.mark.parametrize("batch", ["Group", "Sample"])
def test_rewards_of_trl(name: str, parameters: dict[str, Any] | None, batch: str) -> None:
    score = load("TRL", f"trl.rewards:{name}", batch=batch, factory=parameters is not None, parameters=parameters or {})
    samples, expected = responses(TEXTS), by_trl(name, parameters, TEXTS)
    if batch == "Group":
        group = score(samples)
        assert isinstance(group, GroupResult)
        results = group.results
    else:
        results = [score(sample) for sample in samples]
    assert [None if result is None else result.score for result in results] == expected
    assert len({*expected}) > 1, "the responses show something"


def test_task_rewards_of_trl_are_not_suspect_with_a_right_canary() -> None:
    for name in ("accuracy_reward", "reasoning_accuracy_reward"):
        score = load("TRL", f"trl.rewards:{name}")
        right, wrong = (f"<think>hm</think>{text}" for text in (RIGHT, WRONG))
        results = score(responses([right, right, wrong, ""])).results
        assert suspicion([CanaryScores(0, *(result.score if result else None for result in results))]) is None


BOXED = [
    "\\boxed{42}",
    "\\boxed{41}",
    "Answer: 42",
    "Answer: \\boxed{42}",
    "#### 42",
    "#### 41",
    "",
    "<answer>42</answer>",
]
VERL = [
    ("openai/gsm8k", "42"),
    ("lighteval/MATH", "42"),
    ("HuggingFaceH4/MATH-500", "\\frac{1}{2}"),
    ("math_dapo", "42"),
    ("aime2024", "42"),
    ("numina_olympiads", "42"),
    ("searchR1_nq", {"target": ["42", "forty-two"]}),
]


@pytest.mark.parametrize(("source", "truth"), VERL, ids=str)
def test_rewards_of_verl(source: str, truth: Any) -> None:
    default_compute_score = pytest.importorskip("verl.utils.reward_score").default_compute_score

    score = load("Verl", "verl.utils.reward_score:default_compute_score")
    expected, scores = [], []
    for text in [*BOXED, f"so \\boxed{{{truth}}}"]:
        # As its reward manager calls it. The search reward prints some of what it sees, by the global generator.
        random.seed(0)
        own = default_compute_score(data_source=source, solution_str=text, ground_truth=truth, extra_info={"index": 3})
        expected.append(own["score"] if isinstance(own, dict) else own)
        random.seed(0)
        columns = {"data_source": source, "extra_info": {"index": 3}}
        scores.append(score(RewardSample(text, "", truth, columns=columns)).score)
    assert scores == expected
    assert len({*expected}) > 1, "the responses show something"


@pytest.mark.parametrize(
    "name",
    [
        "gsm8k:compute_score",
        "math_dapo:compute_score",
        "math_reward:compute_score",
        "math_verify:compute_score",
        "prime_math:compute_score",
        "prime_code:compute_score",
        "search_r1_like_qa_em:compute_score",
        "math_batch:compute_score_batched",
    ],
)
def test_parts_of_verl_that_its_trainer_does_not_call_either_are_refused_by_name(name: str) -> None:
    pytest.importorskip("verl.utils.reward_score")
    with pytest.raises(SpecProblem, match=r"can't be called with the signature Verl: .* argument") as refused:
        load("Verl", f"verl.utils.reward_score.{name}")
    assert refused.value.field == "spec.rewards[0]"
