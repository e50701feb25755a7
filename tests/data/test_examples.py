"""The examples are valid, and the reasoning-gym example asks and scores as it says."""

import json
from pathlib import Path

import pytest

from longboat_crds.job import RLJobSpec
from longboat_crds.load import load, load_job
from longboat_crds.model import DType, ModelSpec
from longboat_crds.yaml_text import dump, parse
from longboat_graders.adapters import load_scorer
from longboat_graders.messages import RewardFunction
from longboat_graders.result import RewardResult, RewardSample
from longboat_runtime.reward.rows import row_check
from longboat_runtime.samples import Row
from tests.data.opening import open_evaluation, open_source
from tests.support.tiny_model import build_tiny_model

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MANIFESTS = sorted(path for path in EXAMPLES.rglob("*.yaml") if "apiVersion: longboat.dev" in path.read_text())


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_examples_are_valid(path: Path) -> None:
    for document in parse(path.read_text()):
        assert load(dump(document)).metadata is not None


@pytest.fixture(scope="module")
def job() -> RLJobSpec:
    return load_job((EXAMPLES / "reasoning-gym" / "rljob.yaml").read_text()).spec


def test_reasoning_gym_example_asks_and_scores(job: RLJobSpec, tmp_path: Path) -> None:
    model = ModelSpec(path=str(build_tiny_model(tmp_path, max_length=1024)), dtype=DType.FLOAT32)
    max_tokens = job.rollout.sampling.max_tokens
    source = open_source(job.dataset, model, max_tokens)
    trained: list[Row] = [source.row(prompt) for prompt in source.draw(64)]
    held_out = list(open_evaluation(job.dataset, model, max_tokens))
    assert len(held_out) == 256
    assert not {row.columns["question"] for row in trained} & {row.columns["question"] for row in held_out}
    score = load_scorer(RewardFunction.from_spec(job.rewards[0]), "spec.rewards[0]")
    for row in (trained[0], held_out[0]):
        right = RewardSample(f"so <answer>{row.ground_truth}</answer>", row.text, columns=row.columns)
        assert score(right) == RewardResult(1.0)
        assert score(RewardSample(row.ground_truth, row.text, columns=row.columns)) == RewardResult(
            0.0, format_ok=False
        )


def test_rows_of_the_code_example_can_be_graded() -> None:
    spec = load_job((EXAMPLES / "code" / "rljob.yaml").read_text()).spec
    check = row_check(spec.rewards)
    for number, line in enumerate((EXAMPLES / "code" / "problems.jsonl").read_text().splitlines()):
        columns = json.loads(line)
        check(columns, columns["kind"], columns["tests"], f"row {number}")
