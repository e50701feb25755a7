import json
from pathlib import Path

import pytest
from transformers import ViTConfig

from longboat_crds.reasons import Reason
from longboat_runtime.problems import SpecProblem
from longboat_runtime.trainer.model import read_config
from tests.support.tiny_model import build_tiny_model


def problem_with(path: Path) -> SpecProblem:
    with pytest.raises(SpecProblem) as problem:
        read_config(path)
    assert problem.value.field == "spec.model.path"
    assert problem.value.fatal
    return problem.value


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return build_tiny_model(tmp_path / "model", hidden=64)


def test_no_directory(tmp_path: Path) -> None:
    problem = problem_with(tmp_path / "nothing")
    assert problem.reason == Reason.MODEL_NOT_FOUND
    assert "mounts it" in problem.message


def test_no_config(tmp_path: Path) -> None:
    assert problem_with(tmp_path).reason == Reason.MODEL_NOT_FOUND


def test_a_config_that_is_no_json(directory: Path) -> None:
    (directory / "config.json").write_text("{")
    assert problem_with(directory).reason == Reason.MODEL_INVALID


def test_an_unknown_architecture(directory: Path) -> None:
    (directory / "config.json").write_text(json.dumps({"model_type": "unheard_of"}))
    assert problem_with(directory).reason == Reason.MODEL_INVALID


def test_no_language_model(tmp_path: Path) -> None:
    ViTConfig().save_pretrained(tmp_path)
    problem = problem_with(tmp_path)
    assert problem.reason == Reason.MODEL_INVALID
    assert "no causal language model" in problem.message
