"""Reward functions as users have them run unmodified, and those that can't are told why."""

import re
import runpy
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longboat_crds.dataset import ReasoningGymSource
from longboat_crds.problems import SpecProblem
from longboat_crds.rewards import RewardSpec
from longboat_graders.adapters import load_scorer
from longboat_graders.messages import RewardFunction
from longboat_graders.result import RewardResult, RewardSample
from longboat_runtime.data.gym import GymTable

Score = Callable[..., RewardResult | None]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    def write(source: str) -> str:
        path = tmp_path / "functions.py"
        path.write_text(textwrap.dedent(source))
        return str(path)

    return write


def scored(path: str, sample: RewardSample, signature: str = "Longboat", **parameters: Any) -> RewardResult | None:
    reward = RewardSpec.model_validate(
        {"name": "r", "signature": signature, "function": f"{path}:f", "parameters": parameters}
    )
    return load_scorer(RewardFunction.from_spec(reward), "spec.rewards[0]")(sample)


def test_the_longboat_signature_takes_a_sample_and_parameters(write: Callable[[str], str]) -> None:
    path = write(
        """
        from longboat_graders.result import RewardResult
        def f(sample, bonus=0.0):
            if not sample.text:
                return RewardResult(0.0, format_ok=False)
            return (sample.text == sample.ground_truth) + bonus
        """
    )
    assert scored(path, RewardSample("4", "2+2=", "4"), bonus=0.5) == RewardResult(1.5)
    assert scored(path, RewardSample("", "2+2=", "4")) == RewardResult(0.0, format_ok=False)


@pytest.mark.parametrize("returned", ["1.0 if ok else 0.0", "{'score': float(ok), 'acc': ok}"])
def test_the_verl_signature_runs_unmodified(write: Callable[[str], str], returned: str) -> None:
    path = write(
        f"""
        def f(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
            ok = data_source == "gsm8k" and solution_str == ground_truth and extra_info["index"] == 7
            return {returned}
        """
    )
    columns = {"data_source": "gsm8k", "extra_info": {"index": 7}}
    assert scored(path, RewardSample("4", "2+2=", "4", columns=columns), "Verl") == RewardResult(1.0)


@pytest.mark.parametrize("definition", ["def", "async def"])
def test_the_trl_signature_runs_unmodified(write: Callable[[str], str], definition: str) -> None:
    path = write(
        f"""
        {definition} f(prompts, completions, answer, **kwargs):
            return [None if a is None else float(c == a) for c, a in zip(completions, answer, strict=True)]
        """
    )
    assert scored(path, RewardSample("4", "2+2=", columns={"prompt": "2+2=", "answer": "4"}), "TRL") == RewardResult(
        1.0
    )
    assert scored(path, RewardSample("4", "2+2=", columns={"answer": None}), "TRL") is None


def test_the_trl_signature_is_given_messages_for_chats(write: Callable[[str], str]) -> None:
    path = write("def f(completions):\n    return [float(len(completions[0][0]['content']))]")
    messages = [{"role": "user", "content": "hi"}]
    assert scored(path, RewardSample("four", "<user>hi", messages=messages, columns={"x": 1}), "TRL") == RewardResult(
        4.0
    )


def test_reasoning_gym_scores_by_the_task_itself() -> None:
    table = GymTable(ReasoningGymSource(task="chain_sum", size=10, seed=4), "spec.dataset.reasoningGym")
    record = table.record(3)
    plain = load_scorer(
        RewardFunction.from_spec(RewardSpec.model_validate({"name": "r", "kind": "ReasoningGym"})), "spec.rewards[0]"
    )
    tagged = load_scorer(
        RewardFunction.from_spec(
            RewardSpec.model_validate({"name": "r", "kind": "ReasoningGym", "parameters": {"tag": "answer"}})
        ),
        "spec.rewards[0]",
    )
    right = RewardSample(f" {record['answer']}\n", record["prompt"], columns=record)
    assert plain(right) == RewardResult(1.0)
    assert plain(RewardSample("nonsense", record["prompt"], columns=record)).score < 1.0  # type: ignore[union-attr]
    assert tagged(right) == RewardResult(0.0, format_ok=False)
    answer = RewardSample(f"so <answer>{record['answer']}</answer>", record["prompt"], columns=record)
    assert tagged(answer) == RewardResult(1.0)


def test_a_tag_is_a_text() -> None:
    reward = RewardSpec.model_validate({"name": "r", "kind": "ReasoningGym", "parameters": {"tag": 5}})
    with pytest.raises(SpecProblem, match="It is 5, not a text") as caught:
        load_scorer(RewardFunction.from_spec(reward), "spec.rewards[2]")
    assert caught.value.field == "spec.rewards[2].parameters.tag"


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        ("'1'", "returned a str"),
        ("float('nan')", "returned nan"),
        ("[1.0]", "returned a list"),
        ("{'acc': 1}", "without `score`"),
    ],
)
def test_what_is_no_score_is_an_error(write: Callable[[str], str], returned: str, error: str) -> None:
    signature = "Verl" if "acc" in returned else "Longboat"
    arguments = "data_source, solution_str, ground_truth, extra_info" if signature == "Verl" else "sample"
    with pytest.raises((TypeError, ValueError), match=error):
        scored(write(f"def f({arguments}): return {returned}"), RewardSample("", ""), signature)


@pytest.mark.parametrize(
    ("source", "function", "reason", "message"),
    [
        (
            "def reward(sample): return 1",
            ":rewards",
            "RewardFunctionNotFound",
            r"no function 'rewards'\. Did you mean 'reward'\? It has reward",
        ),
        ("reward = 5", ":reward", "RewardFunctionInvalid", "is a int, not a function"),
        (
            "def reward(): return 1",
            ":reward",
            "RewardFunctionInvalid",
            r"can't be called with the signature Longboat.*reward\(sample\)",
        ),
        ("import nothing_like_this", ":reward", "RewardFunctionInvalid", r"ModuleNotFoundError.*functions\.py line 1"),
        ("1 +", ":reward", "RewardFunctionInvalid", "SyntaxError"),
        (None, "no_such_module:reward", "RewardFunctionNotFound", "no module 'no_such_module'"),
        (None, "/no/such/file.py:reward", "RewardFunctionNotFound", "no file /no/such/file.py"),
        (None, "builtins:max", "RewardFunctionInvalid", r"no signature found.*reward\(sample\)"),
    ],
)
def test_functions_that_cannot_be_had_are_named_with_the_cure(
    write: Callable[[str], str], source: str | None, function: str, reason: str, message: str
) -> None:
    target = write(source) + function if source is not None else function
    with pytest.raises(SpecProblem, match=message) as caught:
        load_scorer(RewardFunction.from_spec(RewardSpec(name="r", function=target)), "spec.rewards[2]")
    assert caught.value.reason == reason
    assert caught.value.field is not None
    assert caught.value.field.startswith("spec.rewards[2]")


@pytest.mark.parametrize("function", ["no_such_module:reward", "FILE:reward"])
def test_a_module_that_the_image_lacks_is_named_with_the_field_of_the_image(
    write: Callable[[str], str], function: str
) -> None:
    target = function.replace("FILE", write("import no_such_module"))
    with pytest.raises(SpecProblem, match=r"no_such_module.* Install it in the image of the graders \(`gradersImage`"):
        load_scorer(RewardFunction.from_spec(RewardSpec(name="r", function=target)), "spec.rewards[2]")


def test_functions_come_from_config_maps(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "reward.py").write_text("def f(sample): return 2.0")
    reward = RewardSpec.model_validate(
        {"name": "r", "configMap": {"name": "ours", "key": "reward.py", "function": "f"}}
    )
    assert load_scorer(RewardFunction.from_spec(reward), "spec.rewards[0]", tmp_path)(
        RewardSample("", "")
    ) == RewardResult(2.0)
    with pytest.raises(SpecProblem, match="no file"):
        load_scorer(RewardFunction.from_spec(reward), "spec.rewards[0]", tmp_path / "elsewhere")


def test_async_functions_need_no_loop_of_their_own(write: Callable[[str], str]) -> None:
    path = write("import asyncio\nasync def f(sample):\n    await asyncio.sleep(0)\n    return 1.0")
    assert scored(path, RewardSample("", "")) == RewardResult(1.0)


def test_the_documented_way_to_try_a_function_works(
    write: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Path(__file__).parents[2] / "docs/rewards.md"
    [program] = re.findall(r"## Trying a function\n\n```python\n(.+?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    path = write("def exact(sample):\n    return float(sample.text == sample.ground_truth)")
    tried = tmp_path / "tried.py"
    tried.write_text(program.replace("/rewards/countdown.py", path))
    runpy.run_path(str(tried))
    assert capsys.readouterr().out == "RewardResult(score=1.0, format_ok=True)\n"
