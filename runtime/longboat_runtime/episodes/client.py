"""A connection to the environments of this pod."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from longboat_crds.problems import SpecProblem
from longboat_graders.client import Client, ServerGone, no_longer_loads
from longboat_graders.episode_messages import EnvironmentFunction, EpisodeEnd, EpisodeResult, Launch
from longboat_graders.frames import FrameError, to_json

# Where the environment pod's two containers meet.
SOCKET = Path("/run/longboat/environments.sock")


class EpisodeClient(Client):
    """Has episodes played over the environments' Unix socket, many at a time. A lost connection is reopened by the next one."""

    def __init__(self, path: Path = SOCKET) -> None:
        super().__init__(path, "environments")
        # Environments that are loaded again when their server has restarted.
        self._loaded: dict[str, tuple[EnvironmentFunction, str]] = {}
        # Ids of requests by episode, and the other way round whom to tell that one has begun.
        self._episodes: dict[str, int] = {}
        self._started: dict[int, Callable[[], None]] = {}

    async def load(self, function: EnvironmentFunction, field: str) -> SpecProblem | None:
        """Loads an environment; `field` is its spec path. Raises ServerGone."""
        await self.connect()
        problem = await self._load(function, field)
        if problem is None:
            self._loaded[function.name] = function, field
        return problem

    async def play(
        self,
        episode: str,
        environment: str,
        task: Mapping[str, Any],
        launch: Launch,
        started: Callable[[], None] = lambda: None,
    ) -> EpisodeResult:
        """Plays an episode, which is named `episode` for `stop`. `started` is called when the environment's code begins.

        `task` has the columns of the row that the environment gets. The episode is LOST if the environments can't be reached, or go away
        before it ends. If the call is cancelled the episode is stopped.
        """
        identity = self._episodes[episode] = self.new_id()
        self._started[identity] = started
        try:
            body = to_json(task)
            await self.connect()
            if episode not in self._episodes:
                return EpisodeResult(EpisodeEnd.STOPPED)
            request = {"op": "play", "environment": environment, "launch": launch.to_json()}
            answer = await self.ask(request, body, identity, cancel="stop")
        except ServerGone as error:
            return EpisodeResult(EpisodeEnd.LOST, message=str(error), server_gone=True)
        except FrameError as error:
            return EpisodeResult(EpisodeEnd.ERROR, message=f"the task can't be sent to the environment: {error}")
        finally:
            self._episodes.pop(episode, None)
            del self._started[identity]
        return EpisodeResult.from_json(answer["result"])

    def stop(self, episode: str) -> None:
        """Stops an episode: its environment is told, and killed ten seconds later. `play` returns once nothing is left of it."""
        identity = self._episodes.pop(episode, None)
        if identity is not None and self.connected:
            self.send({"id": identity, "op": "stop"})

    async def load_again(self) -> None:
        for function, field in self._loaded.values():
            problem = await self._load(function, field)
            if problem is not None:
                raise no_longer_loads("environments", function.name, problem)

    def began(self, identity: int) -> None:
        if identity in self._started:
            self._started[identity]()

    async def _load(self, function: EnvironmentFunction, field: str) -> SpecProblem | None:
        answer = await self.ask({"op": "load", "function": function.to_json(), "field": field})
        return None if answer["problem"] is None else SpecProblem(*answer["problem"])
