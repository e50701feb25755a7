from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from longboat_runtime.cli import app

JOB = """
apiVersion: longboat.dev/v1alpha1
kind: RLJob
metadata: {name: small}
spec:
  runtimeRef: {name: local}
  model: {path: /models/tiny}
  dataset: {files: {paths: [/data/train.jsonl]}}
  rounds: {steps: 2, promptsPerRound: 2}
  rollout: {sampling: {maxTokens: 8}}
  rewards: [{name: main, function: "rewards:main"}]
"""


def unwrapped(text: str) -> str:
    """The text without line breaks, which depend on how long the test's directory is."""
    return " ".join(text.split())


def test_the_command_line_starts_without_anything_heavy() -> None:
    """Agents are PID 1 of every pod, and people wait for --help."""
    heavy = ("ray", "torch", "vllm", "transformers", "numpy", "kubernetes", "matplotlib")
    code = f"import sys, longboat_runtime.cli; print([m for m in {heavy} if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


@pytest.mark.parametrize("words", [[], ["run"], ["agent"], ["graders"]])
def test_every_command_explains_itself(words: list[str]) -> None:
    result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_a_misspelt_field_is_named_with_what_was_meant(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB.replace("promptsPerRound", "promptPerRound"))
    result = CliRunner().invoke(app, ["run", str(file)])
    assert result.exit_code == 1
    assert "spec.rounds.promptPerRound: no such field; did you mean promptsPerRound?" in unwrapped(result.output)
    assert not (tmp_path / "runs").exists()


def test_a_directory_of_rewards_must_exist(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    result = CliRunner().invoke(app, ["run", str(file), "--config-map", f"rewards={tmp_path}/nowhere"])
    assert result.exit_code == 1
    assert "write NAME=DIRECTORY with a directory that exists" in unwrapped(result.output)
