"""`longboat run` and `longboat episode` with environments, everything real: games are played with vLLM, and trained."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from e2e import episodes_job
from longboat_runtime.eventlog import end_of, surviving
from longboat_runtime.metrics.record import read_records
from longboat_runtime.rounds import events
from tests.support.tiny_model import build_tiny_model

GAME = """
async def episode(task, model):
    assert sorted(task) == ["prompt"], task
    client, messages, replies = model.client(), [], []
    for turn in range(2):
        messages.append({"role": "user", "content": f"{task['prompt']}{turn}"})
        answer = await client.chat.completions.create(model=model.name, messages=messages, max_tokens=6)
        messages.append(answer.choices[0].message.model_dump(exclude_none=True))
        replies.append(answer.choices[0].message.content or "")
    return [reply.count("a") / 6 for reply in replies]
"""
EXAMPLES = Path(__file__).parents[2] / "examples" / "environments"
# A chat template with tools.
TEMPLATE = (
    "{% for tool in tools or [] %}<tools>{{ tool | tojson }}{% endfor %}"
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %}<tool_call>{{ call['function'] | tojson }}</tool_call>{% endfor %}"
    "{% if message['role'] == 'assistant' %}<eos>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
REWARD = """
def letters(sample):
    return sum(letter < "m" for letter in sample.text) / max(len(sample.text), 1)
"""
JOB = """
apiVersion: longboat.dev/v1alpha1
kind: RLJob
metadata: {{name: game}}
spec:
  runtimeRef: {{name: local}}
  model: {{path: {data}/model, dtype: Float32, maxLength: 128}}
  dataset:
    files: {{paths: [{data}/train.jsonl]}}
    columns: {{groundTruth: answer}}
  algorithm: {{name: DrGRPO, groupSize: 4}}
  rounds: {{steps: 2, promptsPerRound: 2}}
  rollout: {{sampling: {{maxTokens: 12}}, kvCache: 16Mi, enforceEager: true}}
  environments: [{{name: game, configMap: {{name: games, key: game.py, function: episode}}}}]
  environmentPools: [{{name: games, episodesPerPod: 3}}]
  rewards: [{{name: letters, function: "{data}/rewards.py:letters"}}]
  trainer: {{optimizer: {{learningRate: 1e-3}}, maxTokensPerBin: 128}}
"""


@pytest.mark.extended
def test_a_game_of_two_turns_is_played_and_trained(tmp_path: Path) -> None:
    build_tiny_model(tmp_path / "model", max_length=128)
    rows = [{"prompt": letter, "answer": letter} for letter in "abcdefgh"]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "rewards.py").write_text(REWARD)
    (tmp_path / "games").mkdir()
    (tmp_path / "games" / "game.py").write_text(GAME)
    (tmp_path / "job.yaml").write_text(JOB.format(data=tmp_path))
    output = tmp_path / "out"
    command = [sys.executable, "-m", "longboat_runtime.cli", "run", str(tmp_path / "job.yaml"), "--output", str(output)]
    command += ["--config-map", f"games={tmp_path / 'games'}", "--verbose"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-8000:]
    assert "environments run as this user" in run.stdout + run.stderr
    assert [record.step for record in read_records(output) if record.step] == [1, 2]
    generated = [each.body for each in surviving(output, end_of(output, 1)) if isinstance(each.body, events.Generated)]
    assert len(generated) == 2 * 2 * 4
    # A group's first turns have the same context, and each sample drew in two turns.
    assert all(0 < event.tokens <= 12 for event in generated)
    assert {len(event.segments) for event in generated} == {1}
    assert all(event.segments[0].computed > event.prompt_tokens + event.tokens for event in generated)


def example(name: str, folder: Path) -> tuple[Path, list[str]]:
    """An example's job for a tiny model and two small steps, and the options that stand for its volume and ConfigMap."""
    model = build_tiny_model(folder / "model", max_length=2048)
    (model / "chat_template.jinja").write_text(TEMPLATE)
    job = yaml.safe_load((EXAMPLES / name / "rljob.yaml").read_text())
    spec = job["spec"]
    spec["model"] |= {"dtype": "Float32", "maxLength": 2048}
    spec["algorithm"]["groupSize"] = 4
    spec["rounds"] |= {"steps": 2, "promptsPerRound": 2}
    spec["rollout"]["sampling"]["maxTokens"] = 24
    spec["checkpoint"]["everySteps"] = 1
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    [environment] = spec["environments"]
    options = ["--volume", f"/data/model={model}", "--volume", f"/data={EXAMPLES / name}"]
    return folder / "job.yaml", [*options, "--config-map", f"{environment['configMap']['name']}={EXAMPLES / name}"]


def longboat(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "longboat_runtime.cli", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.extended
@pytest.mark.parametrize("name", ["game", "tools"])
def test_an_example_is_shown_with_the_jobs_own_model(tmp_path: Path, name: str) -> None:
    job, options = example(name, tmp_path)
    shown = longboat("episode", job, "--row", "1", *options)
    assert shown.returncode == 0, shown.stdout[-4000:] + shown.stderr[-8000:]
    assert "> assistant (segment 0, first, " in shown.stdout
    assert " of them trained, in " in shown.stdout
    assert "  trained " in shown.stdout
    assert "\nreward " in shown.stdout


@pytest.mark.extended
@pytest.mark.parametrize("name", ["game", "tools"])
def test_an_example_trains(tmp_path: Path, name: str) -> None:
    job, options = example(name, tmp_path)
    run = longboat("run", job, "--output", tmp_path / "out", *options, "--verbose")
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-8000:]
    assert [record.step for record in read_records(tmp_path / "out") if record.step] == [1, 2]
    samples = longboat("samples", tmp_path / "out")
    assert "> assistant (segment 0, first, " in samples.stdout


@pytest.mark.extended
def test_environments_of_three_kinds_train_and_are_shown(tmp_path: Path) -> None:
    episodes_job.write_data(tmp_path)
    spec = episodes_job.spec(data=str(tmp_path), rounds={"steps": 4, "promptsPerRound": 6})
    job = {"apiVersion": "longboat.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "plays"}, "spec": spec}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    run = longboat("run", tmp_path / "job.yaml", "--output", tmp_path / "out", "--verbose")
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-8000:]
    samples = longboat("samples", tmp_path / "out", "--json", "--step", "all")
    episodes_job.all_are_played([json.loads(line) for line in samples.stdout.splitlines()])
    rows = [json.loads(line)["domain"] for line in (tmp_path / "episodes" / "train.jsonl").read_text().splitlines()]
    for domain in episodes_job.DOMAINS:
        shown = longboat("episode", tmp_path / "job.yaml", "--row", str(rows.index(domain)))
        assert shown.returncode == 0, shown.stdout[-4000:] + shown.stderr[-8000:]
        assert "> assistant (segment 0, first, " in shown.stdout
