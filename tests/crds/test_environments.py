"""Which rows an environment plays, and what it gets of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.environments import EnvironmentSpec, environment_of, environments_of, task_of, withheld_columns
from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_crds.reward_kinds import RewardKind, TestCaseFormat
from longboat_crds.rewards import RewardSpec, SandboxSpec
from longboat_graders.test_cases import read_tests

ROW = {"question": "2+2?", "answer": "4", "reward_model": {"ground_truth": "4"}, "test": "assert f() == 4", "level": 3}


def environment(name: str = "sums", **fields: Any) -> EnvironmentSpec:
    return EnvironmentSpec.model_validate({"name": name, "function": "m:f", **fields})


@given(names=st.lists(st.sets(st.sampled_from("abcdef"), min_size=1), max_size=4), domain=st.sampled_from("abcdefg"))
def test_the_one_environment_with_a_rows_domain_plays_it(names: list[set[str]], domain: str) -> None:
    taken: set[str] = set()
    environments = []
    for number, own in enumerate(names):
        if left := own - taken:
            environments.append(environment(f"e{number}", domains=sorted(left)))
            taken |= left
    playing = environment_of(environments, domain)
    assert [playing] == ([each for each in environments if domain in each.domains] or [None])


@pytest.mark.parametrize("domain", ["chess", None])
def test_one_without_domains_plays_all_rows(domain: str | None) -> None:
    assert environment_of([environment()], domain) == environment()


def test_an_environment_belongs_to_the_pool_that_it_names_or_to_the_only_one() -> None:
    named, unnamed = environment("a", pool="games"), environment("b")
    assert environments_of([environment("c", pool="tools"), named], "games") == {1: named}
    assert environments_of([unnamed], "games") == {0: unnamed}
    assert environments_of(None, "games") == {}


@pytest.mark.parametrize("path", ["answer", "reward_model.ground_truth"])
def test_the_answer_and_test_cases_are_withheld_unless_they_are_listed(path: str) -> None:
    rewards = [
        RewardSpec(name="code", kind=RewardKind.SANDBOX, sandbox=SandboxSpec(solution="solutions.python")),
        RewardSpec(name="episode", kind=RewardKind.EPISODE),
    ]
    row = ROW | {"solutions": {"python": "print(4)"}}
    withheld = withheld_columns(path, rewards)
    task = task_of(environment(), "spec.environments[0]", row, withheld)
    assert {"question", "level"} <= task.keys()
    assert not task.keys() & {path.partition(".")[0], "test", "solutions"}
    assert task_of(environment(columns=["answer", "test"]), "spec.environments[0]", row, withheld) == {
        "answer": "4",
        "test": ROW["test"],
    }


def test_without_a_ground_truth_nothing_but_test_cases_is_withheld() -> None:
    assert task_of(environment(), "e", ROW, withheld_columns(None, [])).keys() == ROW.keys() - {"test"}


def test_a_column_that_rows_lack_is_named_with_the_nearest() -> None:
    with pytest.raises(SpecProblem) as caught:
        task_of(environment(columns=["qestion"]), "spec.environments[2]", ROW, ())
    assert (caught.value.reason, caught.value.field) == (Reason.DATASET_COLUMN_MISSING, "spec.environments[2].columns")
    assert "Did you mean 'question'?" in caught.value.message


@pytest.mark.parametrize(
    ("form", "columns"),
    [
        (TestCaseFormat.PRIME_CODE, {"inputs": ["1"], "outputs": ["2"]}),
        (TestCaseFormat.APPS, {"input_output": '{"inputs": ["1"], "outputs": ["2"]}'}),
        (TestCaseFormat.LIVE_CODE_BENCH, {"public_test_cases": '[{"input": "1", "output": "2", "testtype": "stdin"}]'}),
        (
            TestCaseFormat.LIVE_CODE_BENCH,
            {"private_test_cases": '[{"input": "1", "output": "2", "testtype": "stdin"}]'},
        ),
        (TestCaseFormat.PYTEST, {"test": "def test_it(): pass"}),
    ],
)
def test_no_format_of_test_cases_is_left_in(form: TestCaseFormat, columns: dict[str, Any]) -> None:
    assert read_tests(form, None, columns)
    assert task_of(environment(), "e", columns, ()) == {}
