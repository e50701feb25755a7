"""Adapts environments of all kinds to one call: `await play(task, model)`, which returns what the environment says the episode was worth.

* `async def episode(task, model)` is called as it is.
* A class with `reset` and `step`, or a function without arguments that makes such an object, is played turn by turn. What the model is
  sent is a chat: the first observation as a message of the user, the reply as the assistant's, the next observation as the user's, and so
  on. The action is the text of the reply. An observation is a text, one message ({role, content}) or a list of messages.
  - gymnasium (1.x) and gem: `reset(seed, options) -> observation, info` gets the row as its options, each as far as it takes them;
    `step(action) -> observation, reward, terminated, truncated, info`. Each step's reward is that of a turn.
  - textarena: `reset(num_players=1, seed)`, `get_observation() -> player, observation`, `step(action) -> done, info`,
    `close() -> rewards, info`. The reward is that of player 0, 0 for a game that isn't over. An observation may be a list of
    (sender, text, type), of which the player's own are left out; of one that begins with the whole of the last one only the rest is sent.

`reset` gets the row's column `seed` if that is a number, else a number made of the row: all samples of a prompt play the same task.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from dataclasses import dataclass, field

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_graders.function import Wording, load_function

TYPE_CHECKING = False  # `typing` itself would be in the memory of every episode
if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Mapping
    from typing import Any

    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletionMessage

    from longboat_graders.episode_messages import EnvironmentFunction

    Play = Callable[[Mapping[str, Any], "Model"], Awaitable[Any]]

# Where the environment container sees the ConfigMaps that environments name: <root>/<ConfigMap>/<key>.
CONFIG_MAPS = "/etc/longboat/environments"
ENVIRONMENT = Wording(
    Reason.ENVIRONMENT_NOT_FOUND,
    Reason.ENVIRONMENT_INVALID,
    "where environments run",
    "Install it in the image of the environment container",
    "Mount it in the environment container",
    "Set `function` or `configMap`",
)
_FORMS = (
    "An environment is `async def episode(task, model)`, a class with `reset` and `step`, or a function without arguments that makes an "
    "object with both"
)
# Errors of the endpoint, by their codes, that end an episode without making it worthless.
_BUDGET_CODES = ("context_length_exceeded", "episode_budget_exceeded")


@dataclass(frozen=True, slots=True)
class Model:
    """The model, as an environment sees it: an OpenAI-compatible endpoint at `base_url`, which takes `api_key`, and the model's `name`."""

    base_url: str
    name: str
    api_key: str = field(repr=False)

    def client(self) -> AsyncOpenAI:
        """Makes a client of the endpoint. It waits as long as a turn takes: the episode itself is limited."""
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        # Reading the certificates takes longer than all else at an episode's launch. Loopback needs none, and no proxy that a pod may have.
        remote = self.base_url.startswith("https:")
        http_client = DefaultAsyncHttpxClient(verify=remote, trust_env=remote)
        return AsyncOpenAI(base_url=self.base_url, api_key=self.api_key, timeout=None, http_client=http_client)


def load_environment(function: EnvironmentFunction, at: str, config_maps: str | os.PathLike[str] = CONFIG_MAPS) -> Play:
    """Imports an environment and adapts it. `at` is its spec path. Raises SpecProblem if it can't be found or played."""
    loaded = load_function(function.target, function.file, at, config_maps, ENVIRONMENT)
    if _is_async(loaded):
        _check_arguments(loaded, (None, None), "episode(task, model)", at)
        episode: Play = loaded
        return episode
    if isinstance(loaded, type):
        missing = [name for name in ("reset", "step") if not callable(getattr(loaded, name, None))]
        if missing:
            raise _invalid(at, f"The class {loaded.__name__} has no {' and no '.join(missing)}. {_FORMS}.")
    elif list(inspect.signature(loaded).parameters)[:2] == ["task", "model"]:
        raise _invalid(
            at, f"{_name(loaded)}(task, model) isn't async. Write `async def`, and await the model's replies."
        )
    _check_arguments(loaded, (), f"{_name(loaded)}()", at)

    async def play(task: Mapping[str, Any], model: Model) -> Any:
        environment = loaded()
        if not callable(getattr(environment, "reset", None)) or not callable(getattr(environment, "step", None)):
            raise TypeError(
                f"{_name(loaded)}() made a {type(environment).__name__} without `reset` and `step`. {_FORMS}."
            )
        textarena = callable(getattr(environment, "get_observation", None))
        return await (_play_textarena if textarena else _play_gymnasium)(environment, task, _Chat(model))

    return play


def seed_of(task: Mapping[str, Any]) -> int:
    """Returns the seed for `reset`: the row's column `seed` if that is a whole number from 0 on, else one that is made of the row. Pure."""
    seed = task.get("seed")
    if isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0:
        return seed
    digest = hashlib.sha256(json.dumps(task, sort_keys=True, default=str).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def messages_of(observation: Any) -> list[dict[str, Any]]:
    """Returns the messages of an observation: a text of the user's, one message, or a list of messages. Pure. Raises TypeError otherwise."""
    if isinstance(observation, str):
        return [{"role": "user", "content": observation}]
    messages = observation if isinstance(observation, (list, tuple)) else [observation]
    if not messages or not all(isinstance(message, dict) and "role" in message for message in messages):
        kind = type(observation).__name__
        raise TypeError(
            f"an observation is a {kind}; return a text, a message ({{role, content}}) or a list of messages"
        )
    return list(messages)


class _BudgetExceeded(Exception):
    """The endpoint draws no further turn of this episode."""


class _Chat:
    """The conversation of an environment that is played turn by turn."""

    def __init__(self, model: Model) -> None:
        self._model, self._client = model, model.client()
        self._messages: list[Any] = []

    async def reply(self, messages: list[dict[str, Any]]) -> str:
        """Sends the conversation with these messages at its end; returns the text of the reply. Raises _BudgetExceeded."""
        self._messages += messages
        try:
            answer = await self._client.chat.completions.create(model=self._model.name, messages=self._messages)
        except Exception as error:
            if getattr(error, "code", None) in _BUDGET_CODES:
                raise _BudgetExceeded from error
            raise
        reply: ChatCompletionMessage = answer.choices[0].message
        self._messages.append(reply.model_dump(exclude_none=True))
        return reply.content or ""


async def _play_gymnasium(environment: Any, task: Mapping[str, Any], chat: _Chat) -> list[float]:
    """Plays an episode by gymnasium's conventions, and gem's; returns the rewards of its steps."""
    rewards: list[float] = []
    try:
        begun = await _awaited(environment.reset(**_taken(environment.reset, seed=seed_of(task), options=dict(task))))
        observation, _ = _tuple(begun, 2, "reset", "observation, info")
        while True:
            action = await chat.reply(messages_of(observation))
            stepped = await _awaited(environment.step(action))
            observation, reward, terminated, truncated, _ = _tuple(
                stepped, 5, "step", "observation, reward, terminated, truncated, info"
            )
            rewards.append(reward)
            if terminated or truncated:
                return rewards
    except _BudgetExceeded:
        return rewards
    finally:
        await _close(environment)


async def _play_textarena(environment: Any, task: Mapping[str, Any], chat: _Chat) -> float:
    """Plays a game for one player by textarena's conventions; returns the reward of that player."""
    environment.reset(**_taken(environment.reset, num_players=1, seed=seed_of(task)))
    last = ""
    over = False
    try:
        while not over:
            player, observation = _tuple(environment.get_observation(), 2, "get_observation", "player, observation")
            if player != 0:
                raise ValueError(
                    f"it is player {player}'s turn, and the model is player 0: write `async def episode(task, model)`, which plays the others"
                )
            text = observation if isinstance(observation, str) else _without_own(observation)
            action = await chat.reply(messages_of(text.removeprefix(last) or text))
            last = text if isinstance(observation, str) else ""
            over, _ = _tuple(environment.step(action=action), 2, "step", "done, info")
    except _BudgetExceeded:
        pass
    except BaseException:
        await _close(environment)
        raise
    rewards, _ = _tuple(environment.close(), 2, "close", "rewards, info")
    reward: float = rewards.get(0, 0.0) if rewards else 0.0
    return reward


def _without_own(observation: Any) -> str:
    """Joins what others than player 0 say in an observation of textarena's; what the player said is in the conversation already."""
    return "\n".join(str(text) for sender, text, *_ in observation if sender != 0)


async def _close(environment: Any) -> None:
    if callable(getattr(environment, "close", None)):
        await _awaited(environment.close())


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _tuple(value: Any, length: int, method: str, parts: str) -> Any:
    """Returns `value` if it is a tuple of so many. Raises TypeError otherwise."""
    if not isinstance(value, (tuple, list)) or len(value) != length:
        what = f"{len(value)} values" if isinstance(value, (tuple, list)) else f"a {type(value).__name__}"
        raise TypeError(f"{method} returned {what}; it returns {length}: {parts}")
    return value


def _taken(method: Callable[..., Any], **named: Any) -> dict[str, Any]:
    """Picks the arguments that a method takes by name."""
    parameters = inspect.signature(method).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return named
    return {name: value for name, value in named.items() if name in parameters}


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _check_arguments(function: Callable[..., Any], arguments: tuple[Any, ...], call: str, at: str) -> None:
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError) as error:
        raise _invalid(at, f"It can't be called as {call}: {error}. {_FORMS}.") from error


def _invalid(at: str, message: str) -> SpecProblem:
    return SpecProblem(Reason.ENVIRONMENT_INVALID, at, message)


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
