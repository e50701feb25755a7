"""Recorded responses get the same scores from a plain call, in any isolation and any order: four functions, as users write them."""

import asyncio
import gzip
import json
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from longboat_crds.rewards import RewardSpec
from longboat_graders.adapters import load_scorer
from longboat_graders.messages import OutcomeKind, RewardFunction
from longboat_graders.result import RewardSample
from longboat_runtime.reward.client import GraderClient
from tests.reward.conftest import LONG

RECORDED = Path(__file__).parent / "responses.jsonl.gz"
QUICKSTART = Path(__file__).parents[2] / "examples/quickstart/base/reward.py"
FUNCTIONS = r"""
import random
import re

from math_verify import LatexExtractionConfig, parse, verify

parse(r"\boxed{1}", parsing_timeout=600)

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    if data_source == "openai/gsm8k":
        numbers = re.findall(r"#### (-?[0-9.,]+)", solution_str[-300:])
        return float(bool(numbers) and numbers[-1].replace(",", "") == ground_truth)
    answers = re.findall(r"(?i)answer\s*:\s*([^\n]+)", solution_str[-300:]) or re.findall(r"\\boxed\{([^{}]+)\}", solution_str)
    given = re.sub(r"\\text\{.*?\}|[$ *\\{}]|boxed", "", answers[-1]) if answers else None
    # As tie-breaking does: drawn from the sample's random state.
    return {"score": 1.0 if given == ground_truth else -1.0 + 1e-3 * random.random(), "acc": given == ground_truth}

def accuracy_reward(completions, solution, **kwargs):
    rewards = []
    for completion, right in zip(completions, solution, strict=True):
        gold = parse(right, parsing_timeout=600)
        config = [LatexExtractionConfig(boxed_match_priority=0)]
        given = parse(completion[0]["content"], extraction_config=config, parsing_timeout=600)
        rewards.append(float(verify(gold, given, timeout_seconds=600)) if gold else None)
    return rewards
"""
TASKS = {
    "quickstart": {"function": f"{QUICKSTART}:reward"},
    "gsm8k": {"function": "{functions}:compute_score", "signature": "Verl"},
    "math_dapo": {"function": "{functions}:compute_score", "signature": "Verl"},
    "accuracy": {"function": "{functions}:accuracy_reward", "signature": "TRL", "batch": "Sample"},
}


def recorded() -> dict[str, list[RewardSample]]:
    found: dict[str, list[RewardSample]] = defaultdict(list)
    for line in gzip.decompress(RECORDED.read_bytes()).splitlines():
        entry = json.loads(line)
        found[entry["task"]].append(RewardSample(**entry["sample"]))
    return found


RESPONSES = recorded()


def spec(task: str, path: Path, isolation: str) -> RewardSpec:
    settings = {key: value.replace("{functions}", str(path)) for key, value in TASKS[task].items()}
    return RewardSpec.model_validate(
        {"name": f"{task.replace('_', '-')}-{isolation.lower()}", "isolation": isolation, **settings}
    )


@pytest.fixture(scope="module")
def functions(graders_directory: Path) -> Path:
    path = graders_directory / "recorded.py"
    path.write_text(FUNCTIONS)
    return path


@pytest.fixture(scope="module")
def alone(functions: Path) -> dict[str, list[Any]]:
    """What a plain call of the function returns."""
    scores: dict[str, list[Any]] = {}
    for task, samples in RESPONSES.items():
        score = load_scorer(RewardFunction.from_spec(spec(task, functions, "Auto")), "spec.rewards[0]")
        scores[task] = []
        for seed, sample in enumerate(samples):
            random.seed(seed)
            result = score(sample)
            scores[task].append(result.score if result is not None else None)
    return scores


def test_enough_is_recorded_and_scores_differ(alone: dict[str, list[Any]]) -> None:
    assert RESPONSES.keys() == TASKS.keys()
    assert sum(map(len, RESPONSES.values())) >= 1000
    for task, scores in alone.items():
        right = sum(score == 1.0 for score in scores)
        assert len(scores) / 10 < right < len(scores) * 9 / 10, task


# `make test` runs each task in Auto, and one task in Shared too.
CASES = [
    pytest.param(
        task,
        isolation,
        marks=[] if isolation == "Auto" or (task, isolation) == ("gsm8k", "Shared") else pytest.mark.extended,
    )
    for task in TASKS
    for isolation in ("Auto", "Shared", "PerGrade")
]


@pytest.mark.parametrize(("task", "isolation"), CASES)
async def test_scores_are_the_same(
    task: str, isolation: str, graders: Path, functions: Path, alone: dict[str, list[Any]]
) -> None:
    client, reward = GraderClient(graders), spec(task, functions, isolation)
    assert await client.load(reward, "spec.rewards[0]") is None
    order = list(enumerate(RESPONSES[task]))
    # Auto in two orders; the others in one that is not the plain calls'.
    for shuffled in [False, True] if isolation == "Auto" else [True]:
        if shuffled:
            random.Random(isolation).shuffle(order)
        outcomes = await asyncio.gather(*(client.grade(reward.name, sample, LONG, seed) for seed, sample in order))
        assert {outcome.kind for outcome in outcomes} <= {OutcomeKind.SCORED, OutcomeKind.NOT_APPLICABLE}
        scores = {seed: outcome for (seed, _), outcome in zip(order, outcomes, strict=True)}
        given = [scores[n].score if scores[n].kind is OutcomeKind.SCORED else None for n in range(len(order))]
        assert given == alone[task]
    assert client.isolation[reward.name].isolation == isolation, client.isolation[reward.name].reason
    await client.close()
