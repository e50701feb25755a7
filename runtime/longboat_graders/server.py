"""The graders' Unix socket: answers what a reward worker asks (see `messages`), and decides how many grades run at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from longboat_crds.reward_kinds import RewardIsolation
from longboat_graders import landlock, local, socket_server
from longboat_graders.cgroup import CGROUP_ROOT
from longboat_graders.channel import Channel
from longboat_graders.function import CONFIG_MAPS
from longboat_graders.messages import FunctionOutcome, OutcomeKind
from longboat_graders.quota import LOOK_SECONDS, Quota
from longboat_graders.socket_server import SocketServer
from longboat_graders.supervisor import Grading, LoadedFunction
from longboat_graders.times import waiting_is_counted
from longboat_graders.unenforced import unenforced

log = structlog.get_logger()

# How long an answer waits for others, in seconds. Clients ask for many grades; waking one for each costs as much as a short grade.
_GATHER_SECONDS = 0.005


@dataclass(slots=True, eq=False)
class _Request:
    """A grade that a client has asked for by this id, and waits for."""

    channel: Channel
    id: int
    loaded: LoadedFunction
    grading: Grading


# What a made function keeps is no global of a module, which is what is checked after a grade.
_FACTORY = "what a factory's function keeps between grades isn't checked"


class GraderServer(SocketServer[LoadedFunction]):
    """Runs at most `processes` grades at once, fewer if the quota of the `cgroup` says so; others wait in the order they came.

    `scratch` is the grades' directory; `cgroup` is None if it isn't the graders' own. `missing` says what isn't enforced here besides what
    every kernel tells.
    """

    def __init__(
        self,
        processes: int,
        scratch: Path,
        config_maps: Path = Path(CONFIG_MAPS),
        cgroup: Path | None = CGROUP_ROOT,
        missing: Sequence[str] = (),
    ) -> None:
        super().__init__(scratch, _GATHER_SECONDS)
        self._processes, self._config_maps = processes, config_maps
        self._unenforced = [*missing, *unenforced()]
        self._quota = Quota(processes, cgroup)
        self._looking: asyncio.TimerHandle | None = None
        # The grades that run, and the subset that has run beside others.
        self._running: set[_Request] = set()
        self._ran_beside_others: set[_Request] = set()
        self._waiting: deque[_Request] = deque()
        # What connected clients wait for, by the ids of their requests.
        self._grades: dict[Channel, dict[int, _Request]] = {}

    def listening(self, address: str) -> None:
        log.info(
            "graders listen",
            socket=address,
            processes=self._processes,
            at_once=self._quota.at_once,
            landlock=landlock.version(),
            waiting_is_counted=waiting_is_counted(),
        )
        for line in self._unenforced:
            log.warning("this node can't enforce all limits of graded programs", missing=line)

    def follow(self, channel: Channel, op: str, message: dict[str, Any], body: bytes) -> None:
        match op:
            case "grade":
                self.grade(message, body, channel)
            case "cancel":
                self.cancel(message["id"], channel)
            case _:
                raise LookupError(op)

    def forget(self, channel: Channel) -> None:
        # The newest first: waiting grades are dropped before a process gets free for them.
        for identity in list(reversed(self._grades.get(channel, {}))):
            self.cancel(identity, channel)
        self._grades.pop(channel, None)

    def made(self, request: Mapping[str, Any], directory: Path) -> LoadedFunction:
        loaded = LoadedFunction(
            request["function"],
            request["field"],
            self._config_maps,
            directory,
            self._processes,
            RewardIsolation(request["isolation"]),
        )
        loaded.fell_back.add_done_callback(partial(self._tell_isolation, loaded))
        loaded.changed = partial(self._end_connections, loaded.name)
        return loaded

    async def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Loads a function, or another one of its name instead. The isolation asked for may be stricter than before."""
        name, wanted = request["function"]["name"], {key: request[key] for key in ("function", "field", "isolation")}
        loaded = await self.replaced(name, wanted, request)
        if reason := request.get("reason") or (_FACTORY if request["function"].get("factory") else ""):
            loaded.fall_back(reason)
        await loaded.load()
        log.info(
            "a reward function is loaded",
            reward=name,
            isolation=str(loaded.isolation),
            large_modules=dict(loaded.footprint["modules"]),
            memory_mib=loaded.footprint["resident"] >> 20,
            fork_ms=round(1e3 * loaded.footprint["fork"], 2),
        )
        in_force = {"isolation": loaded.isolation, "reason": loaded.reason, "footprint": loaded.footprint}
        made_of = {"token_ids": loaded.token_ids, "sources": loaded.sources}
        return {"problem": None, **in_force, **made_of, **self._capacity}

    def grade(self, message: Mapping[str, Any], sample: bytes, channel: Channel) -> None:
        """Answers by `channel`, now or later."""
        loaded = self._loaded.get(message["reward"])
        if loaded is None:
            error = f"no reward function {message['reward']!r} is loaded here"
            _answer(channel, message["id"], FunctionOutcome(OutcomeKind.GRADER_ERROR, message=error))
            return
        timeout, own = float(message["timeout"]), message.get("own")
        grading = Grading(
            sample,
            loaded.longest_seconds(timeout),
            int(message["seed"]),
            timeout if loaded.has_cases else None,
            asyncio.get_running_loop().create_future(),
            None if own is None else float(own),
        )
        request = _Request(channel, message["id"], loaded, grading)
        grading.outcome.add_done_callback(partial(self._done, request))
        self._grades.setdefault(channel, {})[request.id] = request
        self._waiting.append(request)
        if self._looking is None:
            self._follow_quota()
        self._start()

    def cancel(self, identity: int, channel: Channel) -> None:
        """Ends a grade that nobody wants any more, without an answer; one that has been answered is gone already."""
        request = self._grades.get(channel, {}).pop(identity, None)
        if request is None:
            return
        if request in self._waiting:
            self._waiting.remove(request)
            request.grading.outcome.cancel()
        else:
            request.loaded.cancel(request.grading)

    def state(self) -> dict[str, Any]:
        """Describes the graders for whoever asks."""
        rewards = {
            name: {
                "isolation": loaded.isolation,
                "reason": loaded.reason,
                "footprint": loaded.footprint,
                "replaced": dict(loaded.replaced),
            }
            for name, loaded in self._loaded.items()
        }
        return {
            "processes": self._processes,
            "running": len(self._running),
            "landlock": landlock.version(),
            "unenforced": self._unenforced,
            "rewards": rewards,
            **self._capacity,
        }

    @property
    def _capacity(self) -> dict[str, Any]:
        return {"at_once": self._quota.at_once, "cpu_seconds": self._quota.cpu_seconds}

    def _follow_quota(self) -> None:
        """Follows the quota from now on, until there is nothing to grade."""
        if not self._waiting and not self._running:
            self._quota.rest()
            self._looking = None
            return
        self._quota.look(bool(self._waiting) and len(self._running) >= self._quota.at_once)
        self._looking = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._follow_quota)
        for channel in self._loads:
            channel.send(self._capacity)
        self._start()

    def _start(self) -> None:
        while self._waiting and len(self._running) < self._quota.at_once:
            request = self._waiting.popleft()
            self._running.add(request)
            if len(self._running) > 1:
                self._ran_beside_others |= self._running
            request.channel.send({"id": request.id, "begun": True})
            request.loaded.grade(request.grading)

    def _done(self, request: _Request, outcome: asyncio.Future[FunctionOutcome]) -> None:
        if self._grades.get(request.channel, {}).pop(request.id, None) is not None:
            _answer(request.channel, request.id, blamed(outcome.result(), alone=request not in self._ran_beside_others))
        self._running.discard(request)
        self._ran_beside_others.discard(request)
        self._start()

    def _tell_isolation(self, loaded: LoadedFunction, _: object) -> None:
        for channel in self._loads:
            channel.send({"reward": loaded.name, "isolation": loaded.isolation, "reason": loaded.reason})

    def _end_connections(self, name: str) -> None:
        """Has clients load all rewards again, since one is no longer what they loaded: they decide whether they want it."""
        log.warning("a reward function has changed since it was loaded", reward=name)
        for channel in list(self._loads):
            channel.close()


def _answer(channel: Channel, identity: int, outcome: FunctionOutcome) -> None:
    channel.send({"id": identity, "outcome": outcome.to_json()})


def blamed(outcome: FunctionOutcome, *, alone: bool) -> FunctionOutcome:
    """Returns the outcome of a grade that has ended. `alone` says that at no time was another graded beside it. Pure.

    A grade is LOST if its container was short of memory while its program crashed; it is graded again with nothing beside it. If it
    was alone already its program is the cause, and scores 0.
    """
    if outcome.kind is not OutcomeKind.LOST or not alone:
        return outcome
    return replace(
        outcome, kind=OutcomeKind.SCORED, score=0.0, message=f"{outcome.message}, with nothing graded beside it"
    )


def main(path: Path, processes: int, config_maps: Path = Path(CONFIG_MAPS), cgroup: Path | None = CGROUP_ROOT) -> None:
    """Runs the graders of a pod: `longboat graders --socket PATH --processes N`. `cgroup` is where the container's quota is read."""
    socket_server.main(path, lambda scratch: GraderServer(processes, scratch, config_maps, cgroup))


def serve_locally(path: Path, processes: int, config_maps: Path, parent: int) -> int:
    """Runs graders without a container; see `local.serve`."""

    def make(scratch: Path, missing: list[str]) -> GraderServer:
        return GraderServer(processes, scratch, config_maps, None, missing)

    return local.serve(path, make, parent, other_user=True)
