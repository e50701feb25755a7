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
from longboat_graders.adapters import load_scorer, takes_token_ids
from longboat_graders.messages import RewardFunction
from longboat_graders.result import GroupResult, RewardResult, RewardSample, plain_metrics
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
    spec = {"name": "r", "signature": signature, "function": f"{path}:f", "parameters": parameters}
    reward = RewardSpec.model_validate(spec | ({"batch": "Sample"} if signature == "TRL" else {}))
    score: Any = load_scorer(RewardFunction.from_spec(reward), "spec.rewards[0]")
    result: RewardResult | None = score(sample)
    return result


def trl(path: str, **spec: Any) -> Callable[[list[RewardSample]], GroupResult]:
    """The scorer of a TRL function, for all responses to a prompt."""
    reward = RewardSpec.model_validate({"name": "r", "signature": "TRL", "function": f"{path}:f", **spec})
    loaded: Any = load_scorer(RewardFunction.from_spec(reward), "spec.rewards[0]")
    score: Callable[[list[RewardSample]], GroupResult] = loaded
    return score


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
    result = scored(path, RewardSample("4", "2+2=", "4", columns=columns), "Verl")
    assert result is not None
    assert (result.score, dict(result.metrics)) == (1.0, {"acc": 1.0} if "acc" in returned else {})


def test_numbers_of_a_verl_dict_are_metrics_if_their_names_are_plain(write: Callable[[str], str]) -> None:
    path = write(
        """
        def f(data_source, solution_str, ground_truth, extra_info=None):
            numbers = {f"n{i}": i for i in range(40)}
            return {"score": 1, "pred": "4", "a b": 1.0, "none": None, "nan": float("nan"), "ok": True, **numbers}
        """
    )
    result = scored(path, RewardSample("", ""), "Verl")
    assert result is not None
    metrics = plain_metrics(result.metrics)
    assert list(metrics) == ["ok", *(f"n{i}" for i in range(31)), "left_out"]
    assert metrics["left_out"] == 10, "nine numbers more than 32, and one whose name has a space"
    assert plain_metrics(metrics) == metrics


def test_verl_functions_may_count_on_extra_info(write: Callable[[str], str]) -> None:
    path = write(
        """
        def f(data_source, solution_str, ground_truth, extra_info=None):
            assert extra_info["rollout_reward_scores"] == {}
            assert extra_info["num_turns"] is None
            return float(extra_info.get("split") == "train")
        """
    )
    assert scored(path, RewardSample("4", "2+2="), "Verl") == RewardResult(0.0)
    assert scored(path, RewardSample("4", "2+2=", columns={"extra_info": None}), "Verl") == RewardResult(0.0)
    columns = {"extra_info": {"split": "train"}}
    assert scored(path, RewardSample("4", "2+2=", columns=columns), "Verl") == RewardResult(1.0)
    assert columns == {"extra_info": {"split": "train"}}


def test_a_factory_makes_the_function(write: Callable[[str], str]) -> None:
    path = write(
        """
        def f(limit, bonus=0.0):
            def reward(sample):
                return float(sample.tokens <= limit) + bonus
            return reward
        """
    )
    made = {"name": "r", "function": f"{path}:f", "factory": True}
    reward = RewardSpec.model_validate({**made, "parameters": {"limit": 3, "bonus": 0.5}})
    score = load_scorer(RewardFunction.from_json(RewardFunction.from_spec(reward).to_json()), "spec.rewards[0]")
    assert score(RewardSample("", "", tokens=3)) == RewardResult(1.5)
    assert score(RewardSample("", "", tokens=4)) == RewardResult(0.5)
    for parameters, said in (({}, "Calling the factory .* fails: TypeError"), ({"limits": 3}, "limits fails")):
        wrong = RewardSpec.model_validate({**made, "parameters": parameters})
        with pytest.raises(SpecProblem, match=said) as caught:
            load_scorer(RewardFunction.from_spec(wrong), "spec.rewards[0]")
        assert caught.value.field == "spec.rewards[0].factory"


def test_what_makes_no_function_is_no_factory(write: Callable[[str], str]) -> None:
    path = write("def f():\n    return 1.0")
    reward = RewardSpec.model_validate({"name": "r", "function": f"{path}:f", "factory": True})
    with pytest.raises(SpecProblem, match="returns a float, not a function"):
        load_scorer(RewardFunction.from_spec(reward), "spec.rewards[0]")


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


def test_trl_functions_are_given_all_responses_to_a_prompt(write: Callable[[str], str]) -> None:
    path = write(
        """
        def f(prompts, completions, answer, **kwargs):
            assert prompts == ["2+2="] * 3 and answer == ["4"] * 3
            longest = max(map(len, completions))
            return [None if c == "" else len(c) / longest for c in completions]
        """
    )
    samples = [RewardSample(text, "2+2=", columns={"answer": "4"}) for text in ("four", "", "4")]
    assert trl(path)(samples) == GroupResult([RewardResult(1.0), None, RewardResult(0.25)])
    with pytest.raises(TypeError, match="returned 1 rewards for 2 completions"):
        trl(write("def f(completions):\n    return [1.0]"))(samples[:2])


def test_trl_functions_get_what_its_trainer_gives(write: Callable[[str], str]) -> None:
    path = write(
        """
        def f(completion_ids, trainer_state, log_metric, log_extra, **kwargs):
            log_metric("accuracy", 0.25)
            log_metric("accuracy", 0.75)
            log_extra("ids", [str(ids) for ids in completion_ids])
            log_extra("long", ["ß" * 5000 for _ in completion_ids])
            return [trainer_state.global_step / trainer_state.max_steps + trainer_state.epoch for _ in completion_ids]
        """
    )
    training = {"global_step": 3, "max_steps": 4, "epoch": 1}
    samples = [RewardSample("", "", token_ids=[index, 5], training=training) for index in range(2)]
    group = trl(path)(samples)
    assert group.metrics == {"accuracy": 0.5}
    for index, result in enumerate(group.results):
        assert result is not None
        assert result.score == 1.75
        assert result.message.startswith(f"ids: [{index}, 5]; long: ßß")
        assert 990 < len(result.message.encode()) <= 1000


@pytest.mark.parametrize(
    ("source", "takes"),
    [
        ("def f(completions, completion_ids): ...", True),
        ("def f(completions, **kwargs): ...", True),
        ("def f(completions): ...", False),
    ],
)
def test_functions_get_token_ids_if_they_take_them(write: Callable[[str], str], source: str, takes: bool) -> None:
    function = RewardFunction.from_spec(
        RewardSpec.model_validate({"name": "r", "signature": "TRL", "function": f"{write(source)}:f"})
    )
    assert takes_token_ids(load_scorer(function, "spec.rewards[0]"), function) is takes


def test_what_trl_gives_and_a_job_has_none_of_is_refused(write: Callable[[str], str]) -> None:
    path = write("def f(completions, environments):\n    return [float(environments)] * len(completions)")
    with pytest.raises(SpecProblem, match="It takes `environments`, which Longboat doesn't have"):
        trl(path)
    assert trl(path, parameters={"environments": 2})([RewardSample("", "")]).results == [RewardResult(2.0)]


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
