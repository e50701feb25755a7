"""Episodes that play as they should: what environments are given and what they may return."""

import asyncio
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.problems import SpecProblem
from longboat_graders.episode_messages import EnvironmentFunction, EpisodeEnd, EpisodeResult, Launch, Reward, as_reward
from longboat_graders.messages import FunctionFile
from longboat_runtime.episodes.client import EpisodeClient
from tests.episodes.conftest import BOUNDS, SECRET, Endpoint, Player, episode_directories

TOOLS = """
import json
import math

def add(a, b): return a + b
def double(a): return 2 * a
def reverse(text): return text[::-1]

NAMES = {"add": add, "double": double, "reverse": reverse}
TOOLS = [{"type": "function", "function": {"name": name, "description": name, "parameters": {"type": "object"}}} for name in NAMES]

async def episode(task, model):
    client = model.client()
    messages = [{"role": "user", "content": task["question"]}]
    rewards = []
    while True:
        answer = await client.chat.completions.create(model=model.name, messages=messages, tools=TOOLS)
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            rewards.append(1.0 if message.content == "the answer is 12" else 0.0)
            return rewards
        rewards.append(0.1)
        for call in message.tool_calls:
            result = NAMES[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
"""


def _tool(name: str, **arguments: object) -> dict[str, object]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"tool_calls": [{"id": f"call-{name}", "type": "function", "function": function}]}


async def test_a_function_plays_with_three_python_tools(player: Player, endpoint: Endpoint) -> None:
    turns = [_tool("add", a=2, b=4), _tool("double", a=6), _tool("reverse", text="21"), {"content": "the answer is 12"}]
    endpoint.replies = lambda body: turns[len(body["messages"]) // 2]
    result = await player.play(await player.load(TOOLS, "episode"), {"question": "2 * (2 + 4)"})
    assert (result.end, result.rewards) == (EpisodeEnd.FINISHED, (0.1, 0.1, 0.1, 1.0)), result.message
    assert result.reward == pytest.approx(1.3)
    last = endpoint.bodies[-1]["messages"]
    assert [message["content"] for message in last if message["role"] == "tool"] == ["6", "12", '"12"']
    assert endpoint.keys == {f"Bearer {SECRET}"}
    assert all(body["model"] == "policy" and len(body["tools"]) == 3 for body in endpoint.bodies)


@pytest.mark.parametrize(
    ("returned", "reward", "rewards"),
    [
        ("1", 1.0, None),
        ("True", 1.0, None),
        ("None", None, None),
        ("[0, 0.5, 1]", 1.5, (0.0, 0.5, 1.0)),
        ("()", 0.0, ()),
        ("__import__('numpy').float32(0.5)", 0.5, None),
        ("__import__('numpy').array([0.5, 1])", 1.5, (0.5, 1.0)),
    ],
)
async def test_a_reward_one_for_each_turn_or_none_is_returned(
    player: Player, returned: str, reward: float | None, rewards: tuple[float, ...] | None
) -> None:
    result = await player.play_source(f"return {returned}")
    assert (result.end, result.reward, result.rewards) == (EpisodeEnd.FINISHED, reward, rewards), result.message


@pytest.mark.parametrize(
    ("returned", "named"),
    [
        ("'well done'", "a str, 'well done'"),
        ("{'reward': 1}", "a dict, {'reward': 1}"),
        ("[1, 'x']", "item 1 is a str, 'x'"),
        ("float('nan')", "nan; a reward is a finite number"),
        ("[1, float('inf')]", "inf"),
        ("object()", "a object"),
        ("'x' * 10**7", "a str"),
    ],
)
async def test_anything_else_is_an_error_that_names_it(player: Player, returned: str, named: str) -> None:
    result = await player.play_source(f"return {returned}")
    assert result.end is EpisodeEnd.ERROR
    assert named in result.message
    assert len(result.message) <= 4000


async def test_an_exception_comes_with_the_end_of_its_traceback(player: Player) -> None:
    result = await player.play_source(
        "def down(n):\n    if n == 0: raise ValueError('bottom' * 10000)\n    down(n - 1)\ndown(300)"
    )
    assert result.end is EpisodeEnd.ERROR
    assert result.message.startswith("ValueError: bottombottom")
    assert len(result.message) <= 4000
    result = await player.play_source("raise RuntimeError('here')")
    assert "RuntimeError: here" in result.message
    assert "in episode" in result.message
    assert "keeper.py" not in result.message


async def test_it_has_a_directory_of_its_own_and_its_secret_only_in_its_memory(player: Player, directory: Path) -> None:
    result = await player.play_source(
        "found = [open(f'/proc/{pid}/{file}', 'rb').read() for pid in ('self', os.getppid()) for file in ('cmdline',)]\n"
        "assert not any(model.api_key.encode() in each for each in found), found\n"
        "assert model.api_key not in str(os.environ) and model.api_key not in repr(model)\n"
        "assert os.getcwd() == os.environ['HOME'] == os.environ['TMPDIR'] == tempfile.gettempdir()\n"
        "assert os.listdir('.') == [] and subprocess.run(['true']).returncode == 0\n"
        "open('a file', 'w').write('x')\n"
        "print(os.getcwd())\n"
        "return float(sorted(task) == ['answer', 'row'])",
        {"row": 3, "answer": [1, {"x": None}]},
    )
    assert (result.end, result.reward) == (EpisodeEnd.FINISHED, 1.0), result.message
    assert not episode_directories(directory)


async def test_random_numbers_are_the_same_in_a_replay(player: Player) -> None:
    name = await player.load("import random\nasync def episode(task, model):\n    return random.random()", "episode")
    first, second = await asyncio.gather(player.play(name, episode="1"), player.play(name, episode="2"))
    assert first.reward == second.reward is not None


async def test_many_play_at_once(player: Player, endpoint: Endpoint) -> None:
    endpoint.replies = lambda body: {"content": body["messages"][-1]["content"]}
    name = await player.load(
        "async def episode(task, model):\n"
        "    client, last = model.client(), None\n"
        "    for turn in range(3):\n"
        "        reply = await client.chat.completions.create(model=model.name, messages=[{'role': 'user', 'content': str(task['n'])}])\n"
        "        last = float(reply.choices[0].message.content)\n"
        "    return last\n",
        "episode",
    )
    begun: list[int] = []
    results = await asyncio.gather(
        *(player.play(name, {"n": n}, episode=str(n), started=lambda n=n: begun.append(n)) for n in range(24))
    )
    assert [result.reward for result in results] == list(range(24))
    assert sorted(begun) == list(range(24))
    assert (await player.client.state())["playing"] == 0


async def test_environments_of_config_maps_are_found(client: EpisodeClient, directory: Path) -> None:
    (directory / "games").mkdir(exist_ok=True)
    (directory / "games" / "game.py").write_text("async def episode(task, model):\n    return 1\n")
    function = EnvironmentFunction("from-a-config-map", None, FunctionFile("games", "game.py", "episode"))
    assert await client.load(function, "spec.environments[0]") is None
    assert (await client.state())["environments"]["from-a-config-map"]["resident"] > 0


@pytest.mark.parametrize(
    ("source", "reason", "said"),
    [
        ("def episode(task, model): return 1", "EnvironmentInvalid", "isn't async"),
        ("async def episode(task): return 1", "EnvironmentInvalid", "can't be called as episode(task, model)"),
        ("class episode:\n    def reset(self): pass", "EnvironmentInvalid", "has no step"),
        (
            "class episode:\n    def __init__(self, level): pass\n    def reset(self): pass\n    def step(self, a): pass",
            "EnvironmentInvalid",
            "can't be called as episode()",
        ),
        ("episod = 1", "EnvironmentNotFound", "has no function 'episode'"),
        ("import no_such_module", "EnvironmentInvalid", "no_such_module"),
        ("raise ValueError('broken')", "EnvironmentInvalid", "broken"),
    ],
)
async def test_what_is_no_environment_is_a_problem_of_its_field(
    player: Player, source: str, reason: str, said: str
) -> None:
    with pytest.raises(SpecProblem) as raised:
        await player.load(source, "episode")
    assert raised.value.reason == reason
    assert str(raised.value.field).startswith("spec.environments[0]")
    assert said in raised.value.message


async def test_an_environment_that_is_not_loaded_is_lost(player: Player) -> None:
    result = await player.play("nobody")
    assert result.end is EpisodeEnd.LOST
    assert "nobody" in result.message


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32) | st.integers(-1000, 1000) | st.booleans()))
def test_rewards_of_turns_are_summed(rewards: list[float]) -> None:
    assert as_reward(rewards) == as_reward(tuple(rewards)) == Reward(math.fsum(rewards), tuple(map(float, rewards)))
    assert [as_reward(reward) for reward in rewards] == [Reward(float(reward)) for reward in rewards]


@given(
    st.text() | st.binary() | st.dictionaries(st.text(), st.integers()) | st.sets(st.integers()) | st.complex_numbers()
)
def test_what_is_no_number_is_no_reward(value: object) -> None:
    for returned in (value, [value], [1.0, value]):
        with pytest.raises(TypeError, match=type(value).__name__):
            as_reward(returned)


def test_messages_survive_their_way() -> None:
    launch = Launch("http://127.0.0.1:1/v1", SECRET, "policy", 7, BOUNDS)
    assert Launch.from_json(json.loads(json.dumps(launch.to_json()))) == launch
    assert SECRET not in repr(launch)
    result = EpisodeResult(EpisodeEnd.FINISHED, 1.5, (1.0, 0.5), "m", "o", 2.0, 1.0)
    assert EpisodeResult.from_json(json.loads(json.dumps(result.to_json()))) == result
