"""Classes with `reset` and `step`, by the conventions of their libraries."""

from typing import Any

import pytest
from aiohttp import web

from longboat_graders.environment import Model, messages_of, seed_of
from longboat_graders.episode_messages import EpisodeEnd
from tests.episodes.conftest import Endpoint, Player

GUESS = """
import gymnasium

class Guess(gymnasium.Env):
    observation_space = gymnasium.spaces.Text(200)
    action_space = gymnasium.spaces.Text(200)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number, self.left = int(self.np_random.integers(1, options["most"] + 1)), 8
        return f"Guess a number from 1 to {options['most']}.", {}

    def step(self, action):
        self.left -= 1
        guess = int(action.split()[-1])
        hint = "right" if guess == self.number else "low" if guess < self.number else "high"
        return hint, 1.0 if hint == "right" else -0.1, hint == "right", self.left == 0, {}
"""
# The same without the package.
PLAIN = (
    GUESS.replace("import gymnasium\n", "import random\n")
    .replace("(gymnasium.Env)", "")
    .replace("        super().reset(seed=seed)\n", "        self.random = random.Random(seed)\n")
    .replace('self.np_random.integers(1, options["most"] + 1)', 'self.random.randint(1, options["most"])')
    .replace("    observation_space = gymnasium.spaces.Text(200)\n    action_space = gymnasium.spaces.Text(200)\n", "")
)
GAME = """
class Game:
    '''As textarena has them, with the observations of `ta.make`: all that was said so far.'''

    def __init__(self): self.closed = False

    def reset(self, num_players, seed=None):
        assert num_players == 1
        self.said, self.turn = "[GAME] Say a word with an e.", 0

    def get_observation(self): return 0, self.said

    def step(self, action):
        self.turn += 1
        self.won = "e" in action
        self.said += f"\\n[Player 0] {action}\\n[GAME] {'Yes' if self.won else 'No'}."
        return self.won or self.turn == 5, {}

    def close(self):
        return {0: 1 if self.won else -1}, {0: {"turn_count": self.turn}}
"""


def bisecting(body: dict[str, Any]) -> dict[str, Any]:
    low, high = 1, 31
    messages = body["messages"]
    for guess, hint in zip(messages[1::2], messages[2::2], strict=True):
        number = int(guess["content"])
        low, high = (number + 1, high) if hint["content"] == "low" else (low, number - 1)
    return {"content": str((low + high) // 2)}


def roles(endpoint: Endpoint) -> list[str]:
    return [message["role"] for message in endpoint.bodies[-1]["messages"]]


@pytest.mark.parametrize("source", [GUESS, PLAIN], ids=["gymnasium", "a class like it"])
async def test_a_gymnasium_class_is_played(player: Player, endpoint: Endpoint, source: str) -> None:
    if source is GUESS:
        pytest.importorskip("gymnasium")
    endpoint.replies = bisecting
    name = await player.load(source, "Guess")
    result = await player.play(name, {"most": 31})
    assert result.end is EpisodeEnd.FINISHED, result.message
    assert result.rewards is not None
    assert result.rewards == (*[-0.1] * (len(endpoint.bodies) - 1), 1.0)
    assert endpoint.bodies[0]["messages"] == [{"role": "user", "content": "Guess a number from 1 to 31."}]
    assert roles(endpoint) == ["user", *["assistant", "user"] * (len(endpoint.bodies) - 1)]
    # Another sample of the same row plays the same game, whatever it says; another row another one.
    again = await player.play(name, {"most": 31})
    assert again.rewards == result.rewards


async def test_a_textarena_game_is_played(player: Player, endpoint: Endpoint) -> None:
    words = iter(["no", "not", "yes"])
    endpoint.replies = lambda body: {"content": next(words)}
    result = await player.play(await player.load(GAME, "Game"))
    assert (result.end, result.reward, result.rewards) == (EpisodeEnd.FINISHED, 1.0, None), result.message
    assert [message["content"] for message in endpoint.bodies[-1]["messages"]] == [
        "[GAME] Say a word with an e.",
        "no",
        "\n[Player 0] no\n[GAME] No.",
        "not",
        "\n[Player 0] not\n[GAME] No.",
    ]


async def test_a_game_of_textarena_itself_is_played(player: Player, endpoint: Endpoint) -> None:
    pytest.importorskip("textarena")
    endpoint.replies = lambda body: {"content": "[10]"}
    source = "import textarena\ndef game(): return textarena.make('GuessTheNumber-v0')\n"
    result = await player.play(await player.load(source, "game"))
    assert result.end is EpisodeEnd.FINISHED, result.message
    assert result.reward is not None
    assert set(roles(endpoint)) == {"user", "assistant"}


async def test_a_game_for_two_is_an_error(player: Player) -> None:
    source = GAME.replace("return 0, self.said", "return 1, self.said")
    result = await player.play(await player.load(source, "Game"))
    assert result.end is EpisodeEnd.ERROR
    assert "player 1's turn" in result.message


async def test_a_function_may_make_the_object(player: Player, endpoint: Endpoint) -> None:
    endpoint.replies = lambda body: {"content": "yes"}
    result = await player.play(await player.load(f"{GAME}\ndef make(): return Game()", "make"))
    assert (result.end, result.reward) == (EpisodeEnd.FINISHED, 1.0)
    result = await player.play(await player.load("def make(): return 3", "make"))
    assert result.end is EpisodeEnd.ERROR
    assert "made a int without `reset` and `step`" in result.message


@pytest.mark.parametrize("code", ["context_length_exceeded", "episode_budget_exceeded"])
@pytest.mark.parametrize(("source", "name", "reward"), [(PLAIN, "Guess", -0.1), (GAME, "Game", -1.0)])
async def test_what_was_earned_counts_when_the_budget_ends(
    player: Player, endpoint: Endpoint, code: str, source: str, name: str, reward: float
) -> None:
    def reply(body: dict[str, Any]) -> dict[str, Any] | web.Response:
        if len(body["messages"]) > 1:
            return web.json_response({"error": {"message": "no more", "code": code}}, status=400)
        return {"content": "32"}

    endpoint.replies = reply
    result = await player.play(await player.load(source, name), {"most": 31})
    assert (result.end, result.reward) == (EpisodeEnd.FINISHED, reward), result.message


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ("def reset(self): return 'x'\n    def step(self, a): pass", "reset returned a str; it returns 2"),
        ("def reset(self): return 'x', {}\n    def step(self, a): return 'x', 1, True, {}", "step returned 4 values"),
        ("def reset(self): return 3, {}\n    def step(self, a): pass", "an observation is a int"),
        ("def reset(self): return 'x', {}\n    def step(self, a): return 'x', 'y', True, False, {}", "item 0 is a str"),
    ],
)
async def test_other_conventions_are_errors(player: Player, methods: str, said: str) -> None:
    result = await player.play(await player.load(f"class Wrong:\n    {methods}\n", "Wrong"))
    assert result.end is EpisodeEnd.ERROR
    assert said in result.message


async def test_methods_may_be_coroutines_and_the_environment_is_closed(player: Player, endpoint: Endpoint) -> None:
    source = """
class Slow:
    async def reset(self, seed): return [{"role": "system", "content": "s"}, {"role": "user", "content": str(seed)}], {}
    async def step(self, action): return "", 2, False, True, {}
    async def close(self): print("closed")
"""
    result = await player.play(await player.load(source, "Slow"), {"seed": 5})
    assert (result.rewards, result.output) == ((2.0,), "closed\n")
    assert endpoint.bodies[0]["messages"] == [{"role": "system", "content": "s"}, {"role": "user", "content": "5"}]


def test_a_row_makes_the_seed_unless_it_has_one() -> None:
    assert seed_of({"seed": 3, "x": 1}) == 3
    assert seed_of({"seed": True}) != 1
    assert seed_of({"a": 1, "b": [2]}) == seed_of({"b": [2], "a": 1}) != seed_of({"a": 1})
    assert 0 <= seed_of({}) < 2**31


def test_observations_are_messages() -> None:
    message = {"role": "user", "content": "x"}
    assert messages_of("x") == messages_of(message) == messages_of([message]) == [message]
    for wrong in (None, 3, [], ["x"], {"content": "x"}):
        with pytest.raises(TypeError, match="an observation is a"):
            messages_of(wrong)


async def test_the_model_is_reached_without_the_proxy_that_a_pod_may_have(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with Model(endpoint.url, "policy", "key").client() as client:
        reply = await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "?"}])
    assert reply.choices[0].message.content == "hello"
