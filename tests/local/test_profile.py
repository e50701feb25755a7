"""`longboat profile` measures a job's engines on real vLLM, and the job accepts what it has written."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from longboat_crds.load import load_job
from longboat_runtime.cli import app
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.shape_plan import bounds_of, profile_of
from longboat_runtime.local.run import on_this_machine
from longboat_runtime.rollout.engine import engine_config, kv_tokens
from longboat_runtime.rollout.factory import read_model_config
from longboat_runtime.rollout.profile import ProfileFile
from tests.support.tiny_model import build_tiny_model

# One device, so one size; few sequences and tokens, so few cells.
JOB = """
apiVersion: longboat.dev/v1alpha1
kind: RLJob
metadata: {name: small}
spec:
  runtimeRef: {name: local}
  model: {path: /data/model, dtype: Float32, maxLength: 128}
  dataset: {files: {paths: [/data/train.jsonl]}}
  rounds: {steps: 2, promptsPerRound: 2}
  rollout:
    sampling: {maxTokens: 8}
    kvCache: 16Mi
    maxSequences: 4
    enforceEager: true
    parallelism: {mode: Adaptive, profile: /data/profile.json}
  rewards: [{name: main, function: "rewards:main"}]
"""


def test_a_job_is_predicted_by_the_profile_of_its_engines(tmp_path: Path) -> None:
    file, output = tmp_path / "job.yaml", tmp_path / "data" / "profile.json"
    build_tiny_model(tmp_path / "data" / "model")
    file.write_text(JOB)
    words = ["profile", str(file), "--output", str(output), "--volume", f"/data={tmp_path}/data"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "spec.rollout.parallelism.profile" in result.output, "it says what to do with the file"
    spec = on_this_machine(load_job(JOB).spec, {"/data": tmp_path / "data"}, all_used=False)
    config = engine_config(spec, "", (0,))
    (engine,) = ProfileFile.model_validate_json(output.read_bytes()).engines.values()
    assert engine.kv_tokens == kv_tokens(config, read_model_config(config), {}, (1,))[1]
    assert (engine.sequences, engine.contexts[0]) == ((1, 4), 32)
    assert engine.contexts[-1] < 128, "the longest that the model takes, with room for what is drawn"
    assert engine.prefill_seconds > 0
    assert all(seconds > 0 for seconds in engine.reshape_seconds.values())
    job = Job("small", spec, tmp_path / "run", 1)
    profile = profile_of(job, spec.rollout, bounds_of(job))
    assert profile is not None
    assert profile.throughput == {1: engine.model}
