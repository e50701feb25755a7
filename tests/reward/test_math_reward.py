"""The reward of the GPU examples, on responses as reasoning models write them."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from longboat_crds.load import load_job
from longboat_crds.rewards import RewardSpec
from longboat_crds.yaml_text import dump, parse
from longboat_graders.adapters import load_scorer
from longboat_graders.messages import OutcomeKind, RewardFunction
from longboat_graders.result import RewardResult, RewardSample
from longboat_runtime.reward.canary import canaries
from longboat_runtime.reward.client import GraderClient
from longboat_runtime.samples import PromptId, Row
from tests.reward.conftest import LONG
from tests.support.paths import REPOSITORY

FILE = REPOSITORY / "examples/gpu/math/math_rewards.py"
JOBS = sorted((REPOSITORY / "examples/gpu").glob("*/rljob.yaml"))
THOUGHTS = """<think>
Okay, let's see. By the law of sines, the ratio is \\(\\frac{3}{2}\\), so AB + AC would be \\boxed{25}? Wait, let me check that again.
With $\\cos A = \\frac{3}{5}$ we get $a = 25$... no: $\\frac{x}{y} = \\frac{3}{2}$.
</think>

"""
SOLUTION = """To solve the problem, we use the angle bisector:

### Step 1
$$
\\cos \\angle A = \\sqrt{1 - \\left(\\frac{4}{5}\\right)^2} = \\frac{3}{5}
$$

"""
ANSWERS = [
    # right
    ("34", r"**Final answer**" + "\n\n$$\n\\boxed{34}\n$$", 1.0),
    ("34", r"So $a + b + c = \boxed{34}.$", 1.0),
    ("34", r"\boxed{a + b + c = 34}", 1.0),
    ("34", r"\boxed{34\text{ cm}}", 1.0),
    (r"\left( 3, \frac{\pi}{2} \right)", r"\boxed{(3, \pi/2)}", 1.0),
    (r"\frac{14}{3}", r"\boxed{4\frac{2}{3}}", 1.0),
    (r"\text{Evelyn}", r"The fastest is \boxed{\text{Evelyn}}.", 1.0),
    (r"p - q", r"\boxed{-q + p}", 1.0),
    (r"\{1, 2\}", r"\boxed{\{2, 1\}}", 1.0),
    ("0.5", r"\boxed{\frac{1}{2}}", 1.0),
    # wrong
    ("34", r"\boxed{35}", 0.0),
    ("34", r"\boxed{-34}", 0.0),
    (r"\left( 3, \frac{\pi}{2} \right)", r"\boxed{(3, \pi)}", 0.0),
    # no box
    ("34", "The answer is 34.", 0.0),
    ("34", "Answer: $34$", 0.0),
    ("34", "", 0.0),
    # several boxes: the last counts, and only if it is closed
    ("34", r"First \boxed{33}, after correction \boxed{34}.", 1.0),
    ("34", r"First \boxed{34}, after correction \boxed{33}.", 0.0),
    ("34", r"It is one of \boxed{33, 34}.", 0.0),
    ("34", r"\boxed{34} and again \boxed{34", 0.0),
    # what can't be read
    ("34", r"\boxed{}", 0.0),
    ("34", r"\boxed{\frac{34}{}", 0.0),
    ("34", r"\boxed{\%\$#@}", 0.0),
]
# Each would take hours or all memory, and is ended by the function itself.
ENDLESS = [r"9^{9^{9^{9}}}", r"10000000!", r"\sum_{k=1}^{10^{9}} \frac{1}{k}", "(" * 400 + "1" + ")" * 400]

Score = Callable[[str, str], float | None]


def spec(file: Path = JOBS[0]) -> RewardSpec:
    """Returns the reward of an example, with the file in place of its ConfigMap."""
    [job] = [item for item in parse(file.read_text()) if item["kind"] == "RLJob"]
    [reward] = load_job(dump(job)).spec.rewards
    assert reward.config_map is not None
    function = f"{FILE}:{reward.config_map.function}"
    assert reward.config_map.key == FILE.name
    return RewardSpec.model_validate(
        reward.model_dump(by_alias=True, exclude_unset=True, exclude={"config_map"}) | {"function": function}
    )


def sample(answer: str, response: str) -> RewardSample:
    messages = [{"role": "user", "content": "What is it?"}]
    return RewardSample(response, "What is it?", answer, "", {"messages": messages, "answer": answer}, messages)


@pytest.fixture(scope="module")
def score() -> Score:
    scorer = load_scorer(RewardFunction.from_spec(spec()), "spec.rewards[0]")

    def scored(answer: str, response: str) -> float | None:
        result = scorer(sample(answer, response))
        assert isinstance(result, RewardResult)
        return result.score

    return scored


@pytest.mark.parametrize(("answer", "end", "expected"), ANSWERS)
def test_responses(score: Score, answer: str, end: str, expected: float) -> None:
    assert score(answer, end) == expected
    assert score(answer, SOLUTION + end) == expected
    assert score(answer, THOUGHTS + SOLUTION + end) == expected


def test_a_response_that_was_cut_off_in_its_thoughts_has_no_answer(score: Score) -> None:
    assert score("25", THOUGHTS) == 0.0
    assert score("25", THOUGHTS.partition("Wait")[0]) == 0.0
    assert score("25", THOUGHTS + SOLUTION + r"\boxed{25} <think> But \boxed{25}") == 0.0


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.parent.name)
def test_the_reward_tells_the_canary_of_each_example_apart(path: Path, score: Score) -> None:
    reward = spec(path)
    assert reward == spec()
    [canary] = canaries([reward])
    for answer in ("34", "-7", r"\frac{14}{3}", "p - q"):
        row = Row(PromptId(0, 0), "", (), ground_truth=answer, columns={"answer": answer})
        responses = canary.responses(row)
        assert responses is not None
        assert [score(answer, response) for response in responses] == [1.0, 0.0]


async def test_it_needs_no_process_of_its_own(graders: Path, tmp_path: Path) -> None:
    """Nor do endless answers, which end by themselves and leave nothing behind."""
    client = GraderClient(graders)
    try:
        reward = spec()
        assert reward.name == "math"
        assert await client.load(reward, "spec.rewards[0]") is None
        responses = [
            *((answer, end, expected) for answer, end, expected in ANSWERS),
            *(("34", rf"\boxed{{{end}}}", 0.0) for end in ENDLESS),
        ]
        outcomes = await asyncio.gather(
            *(client.grade("math", sample(answer, THOUGHTS + end), LONG, 0) for answer, end, _ in responses)
        )
        for (_, end, expected), outcome in zip(responses, outcomes, strict=True):
            assert (outcome.kind, outcome.score) == (OutcomeKind.SCORED, expected), (end, outcome)
        assert client.isolation["math"].isolation == "Auto"
        assert (await client.state())["rewards"]["math"]["replaced"] == {}
    finally:
        await client.close()
