"""Canaries tell rewards that can't be trusted from those that can."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.model import ModelSpec
from longboat_crds.problems import SpecProblem
from longboat_crds.reward_kinds import RewardKind, RewardRole
from longboat_crds.rewards import CanarySpec, RewardSpec, SandboxSpec
from longboat_runtime.data.prompts import load_tokenizer
from longboat_runtime.reward.canary import CanaryScores, as_response, canaries, suspicion
from longboat_runtime.samples import PromptId, Row, SampleId, Sampling
from longboat_runtime.special_tokens import special_texts, with_special_tokens
from tests.support.tiny_model import build_tiny_model

ROWS = 8
SAMPLING = Sampling(64)
Reward = Callable[[str, Any], float]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = build_tiny_model(tmp_path_factory.mktemp("model"))
    return load_tokenizer(ModelSpec(path=str(path)))


def spec(**fields: Any) -> RewardSpec:
    canary = {"right": "<answer>{{ answer }}</answer>", "wrong": "<answer>{{ answer }}0</answer>"}
    return RewardSpec.model_validate({"name": "r", "function": "m:f", "canary": canary, **fields})


def rows(seed: int, answers: Callable[[random.Random], Any]) -> list[Row]:
    drawn = random.Random(seed)
    values = [answers(drawn) for _ in range(ROWS)]
    return [
        Row(PromptId(0, number), "", (1,), ground_truth=value, columns={"answer": value})
        for number, value in enumerate(values)
    ]


def suspect(
    reward: Reward,
    all_rows: list[Row],
    tokenizer: Any,
    reward_spec: RewardSpec | None = None,
    sampling: Sampling = SAMPLING,
    *,
    special: bool = False,
) -> str | None:
    """What is said of a reward that gets the text and the truth of a row, after one check."""
    (canary,) = canaries([reward_spec or spec()])
    checked = []
    for row in all_rows:
        texts = canary.responses(row)
        assert texts is not None
        right, wrong = texts
        scores = []
        for text in (right, right, wrong, ""):
            sample = as_response(SampleId(-1, 0, 1, 0), (1,), text, tokenizer, special_texts(tokenizer), sampling)
            shown = with_special_tokens(sample.text, sample.special) if special else sample.text
            scores.append(reward(shown, row.ground_truth))
        checked.append(CanaryScores(row.prompt.row, *scores))
    return suspicion(checked)


def answer(text: str) -> str:
    return text.partition("<answer>")[2].partition("</answer>")[0] if "</answer>" in text else ""


def right(text: str, truth: Any) -> float:
    return float(answer(text) == str(truth))


def another_rows_truth() -> Reward:
    before = ["?"]

    def reward(text: str, truth: Any) -> float:
        scored = right(text, before[0])
        if text == "":  # the last response to a row
            before[0] = truth
        return scored

    return reward


def swallowed(text: str, truth: Any) -> float:
    try:
        return float(answer(text).answer == truth)  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - the bug
        return 0.0


def at_random() -> Reward:
    drawn = random.Random(3)
    return lambda text, truth: drawn.random()


# Those whose bug is in how the response reaches them are right otherwise.
BUGS: dict[str, Callable[[], Reward]] = {
    "constant": lambda: lambda text, truth: 1.0,
    "sign": lambda: lambda text, truth: -right(text, truth),
    "another row's truth": another_rows_truth,
    "string against number": lambda: lambda text, truth: float(answer(text) == truth),
    "substring": lambda: lambda text, truth: float(str(truth) in text),
    "response ignored": lambda: lambda text, truth: float(str(truth).isdigit()),
    "exception swallowed": lambda: swallowed,
    "empty accepted": lambda: lambda text, truth: float(answer(text) in (str(truth), "")),
    "random": at_random,
}


@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.parametrize("seed", range(4))
def test_planted_bugs_are_told(bug: str, seed: int, tokenizer: Any) -> None:
    """Of what is wrong with numbers, strings show nothing: they are compared with strings."""
    answers = rows(seed, lambda drawn: drawn.randrange(1, 10**6))
    assert suspect(BUGS[bug](), answers, tokenizer)


@pytest.mark.parametrize("seed", range(4))
def test_a_tag_that_a_stop_text_cuts_off_is_told(seed: int, tokenizer: Any) -> None:
    answers = rows(seed, lambda drawn: drawn.randrange(10**6))
    cut = Sampling(64, stop=("</answer>",))
    assert suspect(right, answers, tokenizer, sampling=cut)
    assert suspect(right, answers, tokenizer, sampling=Sampling(64, stop=("</answer>",), include_stop=True)) is None


@pytest.mark.parametrize("seed", range(4))
def test_special_tokens_that_the_reward_does_not_get_are_told(seed: int, tokenizer: Any) -> None:
    answers = rows(seed, lambda drawn: drawn.randrange(10**6))
    special = next(text for token, text in _special(tokenizer) if token != tokenizer.eos_token_id)
    canary = CanarySpec(right=special + "{{ answer }}" + special, wrong=special + "{{ answer }}0" + special)

    def reward(text: str, truth: Any) -> float:
        return float(f"{special}{truth}{special}" in text)

    assert suspect(reward, answers, tokenizer, spec(canary=canary))
    assert suspect(reward, answers, tokenizer, spec(canary=canary), special=True) is None


def _special(tokenizer: Any) -> Iterator[tuple[int, str]]:
    return ((token, added.content) for token, added in tokenizer.added_tokens_decoder.items() if added.special)


@given(seed=st.integers(0, 2**32), wrong_rows=st.integers(0, 3))
def test_a_right_reward_is_not_suspect_though_some_rows_are_wrong(seed: int, wrong_rows: int) -> None:
    drawn = random.Random(seed)
    checked = [
        CanaryScores(number, float(number >= wrong_rows), float(number >= wrong_rows), 0.0, drawn.choice([0.0, -1.0]))
        for number in range(ROWS)
    ]
    assert suspicion(checked) is None


@given(st.lists(st.sampled_from([None, 0.0, 0.5, 1.0]), min_size=4, max_size=4))
def test_each_score_that_is_missing_tells_nothing_but_that_of_the_right_response(scores: list[float | None]) -> None:
    one = CanaryScores(7, *scores)
    right, again, others = one.right, one.again, [score for score in (one.wrong, one.empty) if score is not None]
    trusted = right is not None and again in (None, right) and all(score < right for score in others)
    assert (suspicion([one]) is None) == trusted


def test_what_is_suspect_is_said_with_row_and_scores() -> None:
    assert suspicion([CanaryScores(3, None, 1.0, 0.0, 0.0, "it crashed")]) == (
        "none of 1 right responses got a score (it crashed)"
    )
    assert suspicion([CanaryScores(3, 1.0, 0.5, 0.0, 0.0)]) == "one response to row 3 got 1 and then 0.5"
    assert suspicion([CanaryScores(3, 1.0, 1.0, 1.0, 0.0)]) == (
        "in 1 of 1 rows a wrong response got at least as much as a right one (row 3: 1 and 1)"
    )
    assert suspicion([CanaryScores(3, 1.0, 1.0, 0.0, 2.0)]) == (
        "in 1 of 1 rows an empty response got at least as much as a right one (row 3: 2 and 1)"
    )


def test_kinds_have_their_own_canaries() -> None:
    gym = RewardSpec(name="gym", kind=RewardKind.REASONING_GYM, parameters={"tag": "answer"})
    programs = RewardSpec(name="code", kind=RewardKind.SANDBOX, sandbox=SandboxSpec(solution="solution.python"))
    without = RewardSpec(name="code", kind=RewardKind.SANDBOX, sandbox=SandboxSpec())
    shaping = RewardSpec(name="short", function="m:f", role=RewardRole.SHAPING)
    sooner = gym.model_copy(update={"canary": CanarySpec(every_steps=5)})
    assert canaries([sooner])[0].responses(Row(PromptId(0, 0), "", (1,), columns={"answer": None})) is None
    never = gym.model_copy(update={"canary": CanarySpec(every_steps=0)})
    gym_canary, program_canary = canaries([gym, programs, without, shaping, never])
    row = Row(PromptId(0, 0), "", (1,), columns={"answer": "42", "solution": {"python": "print(1)"}})
    assert gym_canary.responses(row) == ("<answer>42</answer>", "<answer>-</answer>")
    assert program_canary.responses(row) == ("```\nprint(1)\n```", "```\nraise SystemExit(1)\n```")
    assert gym_canary.responses(Row(PromptId(0, 0), "", (1,), columns={"answer": None})) is None


def test_jobs_with_environments_have_only_the_canaries_of_their_spec() -> None:
    gym = RewardSpec(name="gym", kind=RewardKind.REASONING_GYM)
    episode = RewardSpec(name="episode", kind=RewardKind.EPISODE)
    assert canaries([gym, episode], implied=False) == []
    given = RewardSpec(
        name="exact", function="m:f", role=RewardRole.TASK, canary=CanarySpec(right="{{ answer }}", wrong="-")
    )
    assert [canary.reward for canary in canaries([given, gym], implied=False)] == [given]


@pytest.mark.parametrize(
    ("solution", "right"),
    [
        ("print(1)", "```\nprint(1)\n```"),
        ("```python\nprint(1)\n```", "```python\nprint(1)\n```"),
        (None, None),
        (["print(1)"], None),
        (" ", None),
    ],
)
def test_a_solution_is_a_program_in_a_fence(solution: Any, right: str | None) -> None:
    reward = RewardSpec(name="code", kind=RewardKind.SANDBOX, sandbox=SandboxSpec(solution="my-solution"))
    (canary,) = canaries([reward])
    responses = canary.responses(Row(PromptId(0, 0), "", (1,), columns={"my-solution": solution}))
    assert (responses and responses[0]) == right
    with pytest.raises(ValueError, match="No column 'my-solution'"):
        canary.responses(Row(PromptId(0, 0), "", (1,), columns={"solution": "print(1)"}))


def test_a_response_ends_as_an_engine_ends_it(tokenizer: Any) -> None:
    """Ordinarily by the token for the end, which counts; else by the first of what ends responses, up to which tokens count."""

    def made(text: str, **sampling: Any) -> tuple[str, int, str, str]:
        drawn = Sampling(sampling.pop("most", 64), **sampling)
        sample = as_response(SampleId(-1, 0, 1, 0), (1,), text, tokenizer, special_texts(tokenizer), drawn)
        special = with_special_tokens(sample.text, sample.special)
        return sample.text, len(sample.token_ids), str(sample.finish_reason), special

    end = tokenizer.eos_token
    (bang,) = tokenizer("!", add_special_tokens=False)["input_ids"]
    assert made("42") == ("42", 3, "stop", f"42{end}")
    assert made("") == ("", 1, "stop", end)
    assert made("42!7", stop_token_ids=(bang,)) == ("42", 3, "stop", "42")
    assert made("42!7", stop_token_ids=(bang,), include_stop=True) == ("42!", 3, "stop", "42!")
    assert made("42</a>7", stop=("</a>",)) == ("42", 6, "stop", "42")
    assert made("42</a>7", stop=("</a>",), include_stop=True) == ("42</a>", 6, "stop", "42</a>")
    assert made("4242", most=2) == ("42", 2, "length", "42")


def test_templates_that_make_no_sense_are_refused() -> None:
    with pytest.raises(SpecProblem, match=r"rewards\[0\].canary.right.*Line 1"):
        canaries([spec(canary={"right": "{{ answer", "wrong": "x"})])
    with pytest.raises(ValueError, match="leave canary out, or set role to Task"):
        spec(role=RewardRole.SHAPING)
    with pytest.raises(ValueError, match="give both templates, or leave both out"):
        spec(canary={"right": "x"})
    with pytest.raises(ValueError, match="only ReasoningGym and Sandbox have canaries of their own"):
        spec(canary={})
    (canary,) = canaries([spec(canary={"right": "{{ anser }}", "wrong": "x"})])
    with pytest.raises(ValueError, match=r"'right' fails for row 0: 'anser' is undefined; the row has .*answer"):
        canary.responses(Row(PromptId(0, 0), "", (1,), columns={"answer": "1"}))
