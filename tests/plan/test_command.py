"""`longboat plan` on the command line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from longboat_runtime.cli import app
from longboat_runtime.plan import command
from tests.plan.planned import MODELS
from tests.support.paths import REPOSITORY

JOB = """
apiVersion: longboat.dev/v1alpha1
kind: RLJob
metadata: {name: job}
spec:
  runtimeRef: {name: runtime}
  model: {path: /models/small, maxLength: 512}
  dataset: {reasoningGym: {task: chain_sum}}
  rewards: [{name: scorer, kind: ReasoningGym}]
  rounds: {steps: 10, promptsPerRound: 4}
  rollout: {sampling: {maxTokens: 256}}
  trainer: {maxTokensPerBin: 512, compile: false}
"""
RUNTIME = """
---
apiVersion: longboat.dev/v1alpha1
kind: ClusterRLRuntime
metadata: {name: runtime}
spec:
  image: image
"""
LIMIT = """\
  roles:
    trainer:
      template: {spec: {containers: [{name: trainer, resources: {limits: {memory: 64GB}}}]}}
"""


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["plan", *map(str, arguments)])
    return result.exit_code, result.output


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(MODELS["small"]))
    path = tmp_path / "job.yaml"
    path.write_text(JOB + RUNTIME)
    return path


def test_a_file_with_job_and_template_beside_its_config_needs_no_option(file: Path) -> None:
    status, output = run(file, "--device", "80Gi")
    assert status == 0, output
    assert output.rstrip().endswith("Fits, as far as it is given.")
    assert "layers not recomputed" in output


def test_what_does_not_fit_is_named_with_its_change(file: Path) -> None:
    file.write_text(JOB + "  checkpoint: {volume: {size: 1Mi}}\n" + RUNTIME)
    status, output = run(file)
    assert status == 1, output
    assert "DoesNotFit: spec.checkpoint.volume.size: " in output
    assert "the cheapest change that fits: spec.checkpoint.volume.size: 1Gi" in output


def test_model_and_template_may_be_elsewhere(file: Path, tmp_path: Path) -> None:
    model = tmp_path / "other"
    model.mkdir()
    (tmp_path / "config.json").rename(model / "config.json")
    (tmp_path / "runtime.yaml").write_text(RUNTIME)
    file.write_text(JOB)
    status, output = run(file, "--model", model, "--runtime", tmp_path / "runtime.yaml", "--device", "80Gi")
    assert status == 0, output


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (RUNTIME, (), "holds 0 RLJobs"),
        (JOB, ("--device", "lots"), "--device: lots is no quantity"),
        (JOB, ("--device", "-5Gi"), "--device: -5Gi is no quantity"),
        (JOB, ("--device", "80"), "--device: 80 is 80 bytes, less than any GPU has; write it like 80Gi"),
        (JOB + RUNTIME + LIMIT, (), "limits.memory: 64GB is no quantity of bytes; write it like 80Gi"),
        (JOB + RUNTIME.replace("name: runtime", "name: other"), (), "ClusterRLRuntime other"),
        (JOB.replace("maxTokens:", "maxToken:"), (), "maxToken"),
        (JOB + RUNTIME + LIMIT.replace("memory: 64GB", "nvidia.com/gpu: 8"), (), "spec.trainer.devicesPerPod: is 1"),
    ],
)
def test_what_cannot_be_planned_is_said(file: Path, text: str, options: tuple[str, ...], message: str) -> None:
    file.write_text(text)
    status, output = run(file, *options)
    assert status == 2
    assert message in output


def test_a_model_that_cannot_be_traced_is_said(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("depends on data")

    monkeypatch.setattr(command, "judge", fail)
    status, output = run(file)
    assert status == 2
    assert "this model can't be planned (RuntimeError('depends on data'))" in output


def test_a_model_without_config_is_said(file: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").unlink()
    status, output = run(file)
    assert status == 2
    assert "spec.model.path: no config.json" in output


def test_what_config_json_leaves_out_is_what_training_takes(file: Path, tmp_path: Path) -> None:
    config = MODELS["small"] | {"model_type": "qwen3"}
    # The defaults of Qwen3's class.
    left_out = {"num_key_value_heads": 32, "num_attention_heads": 32, "max_position_embeddings": 32768, "head_dim": 128}
    whole = config | left_out
    outputs = []
    for content in (whole, {name: value for name, value in whole.items() if name not in left_out}):
        (tmp_path / "config.json").write_text(json.dumps(content))
        status, output = run(file, "--device", "80Gi")
        assert status == 0, output
        outputs.append(output)
    assert outputs[0] == outputs[1]


def test_what_only_an_assumption_decides_is_a_warning(file: Path) -> None:
    file.write_text(
        file.read_text().replace("maxTokensPerBin: 512", "maxTokensPerBin: 4096, gradientCheckpointing: false")
    )
    status, output = run(file, "--device", "3100Mi")
    assert status == 0, output
    assert "May not fit: spec.trainer.gradientCheckpointing: a trainer rank needs" in output
    assert "but 3.0 GiB of what it needs are assumed" in output


EXAMPLES = sorted((REPOSITORY / "examples/gpu").glob("*/rljob.yaml"))


@pytest.mark.extended
@pytest.mark.parametrize("example", EXAMPLES, ids=[example.parent.name for example in EXAMPLES])
def test_the_examples_fit_by_the_plans_on_the_page(example: Path) -> None:
    status, output = run(example, "--device", "79Gi")
    assert status == 0, output
    assert output.rstrip().endswith("Fits.")
    assert output.strip() in (REPOSITORY / "docs/plan.md").read_text()
