"""DAPO's length penalty."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.rewards import RewardSpec
from longboat_graders.adapters import load_scorer
from longboat_graders.messages import RewardFunction
from longboat_graders.overlong import soft_overlong
from longboat_graders.result import RewardResult, RewardSample


def penalty(tokens: int, max_tokens: int = 100, buffer_tokens: int = 20) -> float:
    return soft_overlong(RewardSample(text="", prompt="", tokens=tokens), max_tokens, buffer_tokens)


def test_it_falls_over_the_buffer() -> None:
    assert [penalty(tokens) for tokens in (0, 80, 85, 90, 100, 150)] == [0, 0, -0.25, -0.5, -1, -1]


@given(st.integers(0, 300), st.integers(1, 200), st.integers(1, 200))
def test_it_is_the_papers_formula(tokens: int, longest: int, buffer: int) -> None:
    buffer = min(buffer, longest)
    if tokens <= longest - buffer:
        expected = 0.0
    elif tokens <= longest:
        expected = ((longest - buffer) - tokens) / buffer
    else:
        expected = -1.0
    assert penalty(tokens, longest, buffer) == pytest.approx(expected)


@pytest.mark.parametrize("buffer", [0, 101])
def test_a_buffer_that_does_not_fit_is_refused(buffer: int) -> None:
    with pytest.raises(ValueError, match="buffer_tokens"):
        penalty(50, 100, buffer)


def test_a_job_names_it_as_a_function() -> None:
    parameters = {"max_tokens": 100, "buffer_tokens": 20}
    reward = RewardSpec(name="short", function="longboat_graders.overlong:soft_overlong", parameters=parameters)
    score = load_scorer(RewardFunction.from_spec(reward), "rewards[0]")
    assert score(RewardSample(text="", prompt="", tokens=90)) == RewardResult(-0.5)


def test_it_imports_next_to_nothing() -> None:
    code = "import sys; import longboat_graders.overlong; print(len(sys.modules))"
    bare = "import sys, typing; print(len(sys.modules))"
    sizes = [int(subprocess.check_output([sys.executable, "-c", text])) for text in (code, bare)]
    assert sizes[0] <= sizes[1] + 5


@pytest.mark.parametrize("name", ["overlong", "result"])
def test_the_former_names_say_where_they_went(name: str) -> None:
    code = f"import longboat_runtime.reward.{name} as former, longboat_graders.{name} as module\n"
    code += "assert all(getattr(former, each) is getattr(module, each) for each in former.__all__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"FutureWarning: longboat_runtime.reward.{name} is now longboat_graders.{name}" in done.stderr
