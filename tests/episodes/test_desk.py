"""`longboat episode` against an endpoint: no tokens, no engine, and the job's model needn't be there."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.episodes.conftest import Endpoint

EXAMPLES = Path(__file__).parents[2] / "examples" / "environments"


async def episode(job: Path, *words: str, key: str = "secret") -> tuple[int, str]:
    """Runs the command on the machine's own model's endpoint; returns its status and what it prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "longboat_runtime.cli", "episode", str(job), *words),
        env={**os.environ, "OPENAI_API_KEY": key, "COLUMNS": "200"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


def words(example: str, function: str, endpoint: Endpoint | None = None) -> list[str]:
    folder = EXAMPLES / example
    at = [] if endpoint is None else ["--url", endpoint.url, "--model", "other"]
    return ["--volume", f"/data={folder}", "--config-map", f"{function}={folder}", *at]


def calls(name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"content": None, "tool_calls": [{"id": f"theirs-{name}", "type": "function", "function": function}]}


def replies(*messages: dict[str, Any] | web.Response) -> Callable[[dict[str, Any]], dict[str, Any] | web.Response]:
    """Replies with these, one after another."""
    rest = iter(messages)
    return lambda body: next(rest)


async def test_tools_are_called_and_shown(endpoint: Endpoint) -> None:
    endpoint.replies = replies(
        calls("price", '{"item": "apple"}'), calls("multiply", '{"a": 2, "b": 3}'), {"content": "They cost 10"}
    )
    status, output = await episode(EXAMPLES / "tools" / "rljob.yaml", *words("tools", "shop", endpoint))
    assert status == 0, output
    assert "user: What do 2 times apple and 1 times pear cost?" in output
    assert '"name": "multiply"' in output
    assert "tool: 6" in output
    assert "> assistant (segment 0, first" in output
    assert "segment 0: no tokens, in 3 turns" in output
    assert "hands out no tokens" in output
    assert "reward 1\n" in output
    assert "seconds " in output
    # The endpoint gets the job's bounds, the conversation as the client has it, and the key of the environment's variable.
    assert endpoint.keys == {"Bearer secret"}
    last = endpoint.bodies[-1]
    assert (last["model"], len(last["tools"])) == ("other", 3)
    assert last["max_completion_tokens"] <= 256
    call, result = last["messages"][-2:]
    assert call["tool_calls"][0]["id"] == result["tool_call_id"]
    assert call["tool_calls"][0]["function"]["arguments"] == '{"a": 2, "b": 3}'


async def test_a_game_is_played_by_its_class(endpoint: Endpoint) -> None:
    endpoint.replies = replies({"content": "8"}, {"content": "no idea"}, {"content": "8"}, {"content": "8"})
    status, output = await episode(
        EXAMPLES / "game" / "rljob.yaml", "--environment", "guess", "--row", "3", *words("game", "guess", endpoint)
    )
    assert status == 0, output
    assert "user: I think of a number from 1 to 15." in output
    assert "user: That is no number." in output or "user: Right!" in output
    assert "reward " in output


JOB = """
apiVersion: longboat.dev/v1alpha1
kind: RLJob
metadata: {name: probe}
spec:
  runtimeRef: {name: local}
  model: {path: /nowhere/model, maxLength: 128}
  dataset: {files: {paths: [/data/train.jsonl]}, columns: {domain: kind}}
  rounds: {steps: 2, promptsPerRound: 2}
  rollout: {sampling: {maxTokens: 64}}
  environments:
  - {name: compacting, domains: [compact], configMap: {name: probe, key: probe.py, function: compact}}
  - {name: failing, domains: [fail], configMap: {name: probe, key: probe.py, function: fail}}
  environmentPools: [{name: probes}]
  rewards: [{name: letters, function: "rewards:letters"}]
  trainer: {maxTokensPerBin: 128}
"""
PROBE = """
async def ask(model, *contents):
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": content} for n, content in enumerate(contents)]
    reply = await model.client().chat.completions.create(model=model.name, messages=messages)
    return reply.choices[0].message.content

async def compact(task, model):
    reply = await ask(model, "begin")
    await ask(model, "begin", "a summary", "go on")

async def fail(task, model):
    await ask(model, "begin")
    print("about to fail")
    raise LookupError("no such level")
"""


@pytest.fixture
def probe(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "probe.py").write_text(PROBE)
    (tmp_path / "train.jsonl").write_text('{"prompt": "a", "kind": "compact"}\n{"prompt": "b", "kind": "fail"}\n')
    return tmp_path


def probed(probe: Path, endpoint: Endpoint) -> list[str]:
    return [
        *("--volume", f"/data={probe}", "--config-map", f"probe={probe}"),
        *("--url", endpoint.url, "--model", "other"),
    ]


async def test_it_says_why_a_segment_began_and_what_would_grade_the_episode(probe: Path, endpoint: Endpoint) -> None:
    status, output = await episode(probe / "job.yaml", "--row", "0", *probed(probe, endpoint))
    assert status == 0, output
    assert "segment 1: no tokens, in 1 turn" in output
    assert "begun by turn 1, since its messages don't continue an earlier turn: its message 1 is the first" in output
    assert "letters would grade it" in output


async def test_an_environment_that_fails_shows_its_turns_what_it_printed_and_its_error(
    probe: Path, endpoint: Endpoint
) -> None:
    status, output = await episode(probe / "job.yaml", "--row", "1", *probed(probe, endpoint))
    assert status == 1
    assert ": hello" in output
    assert "about to fail" in output
    assert "LookupError: no such level" in output


async def test_what_the_endpoint_refuses_is_shown(probe: Path, endpoint: Endpoint) -> None:
    endpoint.replies = lambda body: web.json_response({"error": {"message": "no model 'other' here"}}, status=404)
    status, output = await episode(probe / "job.yaml", *probed(probe, endpoint))
    assert status == 1
    assert "no model 'other' here" in output


@pytest.mark.parametrize(
    ("added", "message"),
    [
        (["--environment", "failin"], "no such environment. Did you mean 'failing'? It has compacting, failing."),
        (["--environment", "failing"], "whose domain is 'compact', is played by compacting"),
        (["--row", "2"], "--row 2: the dataset has no row 2: its 2 rows are 0 to 1"),
        (["--url", "http://127.0.0.1:1/v1"], "--url and --model belong together"),
    ],
)
async def test_bad_options_are_named(probe: Path, added: list[str], message: str) -> None:
    named = ["--volume", f"/data={probe}", "--config-map", f"probe={probe}"]
    status, output = await episode(probe / "job.yaml", *named, *added)
    assert status == 1
    assert message in " ".join(output.split())


async def test_a_key_is_wanted(probe: Path, endpoint: Endpoint) -> None:
    status, output = await episode(probe / "job.yaml", *probed(probe, endpoint), key="")
    assert status == 1
    assert "set OPENAI_API_KEY" in output
