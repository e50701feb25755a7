"""The Ray actor of an environment pod: a recorder, and the episodes that the environments beside it play with that."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from longboat_crds.environments import EnvironmentSpec
from longboat_crds.problems import SpecProblem
from longboat_graders.client import ServerGone
from longboat_graders.episode_messages import EpisodeEnd, EpisodeResult
from longboat_graders.sandbox import allowed_limits
from longboat_runtime.episodes.client import EpisodeClient
from longboat_runtime.episodes.play import (
    EpisodeConfig,
    EpisodeReport,
    EpisodeRequest,
    environment_launch,
    finished,
    function_of,
    not_drawn,
    recorder_launch,
    stopped,
)
from longboat_runtime.recorder.contexts import Contexts
from longboat_runtime.recorder.server import Bounds, Endpoint, Played, Recorder
from longboat_runtime.rollout.turn_router import TurnEngines, TurnRouter
from longboat_runtime.samples import FinishedSample, LossCause, LostSample
from longboat_runtime.stacks import thread_stacks
from longboat_runtime.store.client import StoreUnreachable
from longboat_runtime.store.protocol import SampleStore
from longboat_runtime.tracebacks import cause_in

log = structlog.get_logger()

# How long `reports` waits before it returns nothing, so that it doesn't wait for ever when its caller is gone.
POLL_SECONDS = 30.0
# A driver that hasn't called for so long, though it waits for reports all the time, is gone: its episodes end.
DRIVER_SECONDS = 10 * POLL_SECONDS
# How often an episode is looked at whose deadline is near and whose clock stands, in seconds.
_CLOCK_SECONDS = 0.25
# How long the episodes of an earlier actor may take to end: ten seconds until they are killed, and what that takes.
_EARLIER_SECONDS = 30.0
# How much longer than its wall limit, or than it may take to end, an episode is waited for whose server doesn't answer.
_SILENCE_SECONDS = 60.0
_SILENT = EpisodeResult(EpisodeEnd.LOST, message="its server doesn't end it", server_gone=True)
# Files that this process may open, if its container lets it: each episode has several connections, and many containers begin with 1024.
_OPEN_FILES = 65_536


@dataclass(eq=False)
class _Playing:
    """An episode that is played. Its environment has `begun` when the recorder's clock showed `before` seconds."""

    request: EpisodeRequest
    environment: EnvironmentSpec
    endpoint: Endpoint
    before: float = 0.0
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    stop: asyncio.Event = field(default_factory=asyncio.Event)


class EpisodeActor:
    """One for each pool in an environment pod. Ray runs its methods on one event loop. `name` is the player of its samples.

    It ends its episodes when nobody has asked for reports for DRIVER_SECONDS. With its process, which ends with the driver's, they end anyway.
    """

    def __init__(self, name: str, config: EpisodeConfig, contexts: Contexts, store: SampleStore) -> None:
        self._name, self._config, self._contexts, self._store = name, config, contexts, store
        self._environments = {environment.name: environment for environment in config.environments.values()}
        self._router = TurnRouter(name)
        self._client = EpisodeClient(config.socket)
        self._playing: dict[int, _Playing] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._reports: list[EpisodeReport] = []
        self._reported = asyncio.Event()
        self._failure: BaseException | None = None
        # When the driver last called.
        self._heard = time.monotonic()

    async def start(self) -> SpecProblem | str | None:
        """Loads the environments and begins to serve. Returns a SpecProblem if one can't be loaded, a message if there is no server."""
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, allowed_limits(resource.RLIMIT_NOFILE, _OPEN_FILES, hard))
        self._recorder = Recorder(self._router, self._contexts, self._config.model, Bounds())
        await self._recorder.start()
        self._spawn(self._end_without_driver())
        try:
            await self._wait_for_earlier()
            for place, environment in self._config.environments.items():
                problem = await self._client.load(function_of(environment), f"spec.environments[{place}]")
                if problem is not None:
                    return problem
        except ServerGone as error:
            return str(error)
        return None

    async def _wait_for_earlier(self) -> None:
        """Waits until nothing is played any more for an actor that was here before, whose episodes have been told to end. Raises ServerGone."""
        end = time.monotonic() + _EARLIER_SECONDS
        while True:
            state = await self._client.state()
            if not state["playing"] or time.monotonic() > end:
                return
            await asyncio.sleep(_CLOCK_SECONDS)

    async def update(self, table: TurnEngines) -> None:
        """Learns which engines serve turns."""
        self._router.update(table)

    async def play(self, requests: Sequence[EpisodeRequest]) -> None:
        """Begins episodes."""
        self._heard = time.monotonic()
        for request in requests:
            environment = self._environments[request.environment]
            endpoint = self._recorder.open(recorder_launch(self._config, environment, request))
            playing = self._playing[request.number] = _Playing(request, environment, endpoint)
            self._spawn(self._play(playing))

    async def stop(self, numbers: Sequence[int]) -> None:
        """Stops launches; each is reported as aborted at once, and as over when nothing is left of it. Others are passed over."""
        for number in numbers:
            if number in self._playing:
                self._playing[number].stop.set()

    async def reports(self) -> list[EpisodeReport]:
        """Waits for reports, at most POLL_SECONDS. Raises what has failed, such as StoreUnreachable. One caller at a time."""
        self._heard = time.monotonic()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._reported.wait(), POLL_SECONDS)
        self._heard = time.monotonic()
        if self._failure is not None:
            raise self._failure
        reports, self._reports = self._reports, []
        self._reported.clear()
        return reports

    async def stacks(self) -> str:
        """Returns the stacks of all threads of this process."""
        return await asyncio.to_thread(thread_stacks)

    async def close(self) -> None:
        """Ends all episodes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._recorder.stop()
        await self._client.close()

    # --- One episode ---

    async def _play(self, playing: _Playing) -> None:
        request, sample, limits = playing.request, playing.request.sample, playing.environment.limits
        name = str(request.number)
        launch = environment_launch(playing.environment, sample, playing.endpoint)

        def started() -> None:
            with suppress(KeyError):  # the launch has ended at the recorder
                playing.before = self._recorder.environment_seconds(playing.endpoint)
                playing.begun.set()

        result = asyncio.create_task(self._client.play(name, request.environment, request.task, launch, started))
        deadline = asyncio.create_task(self._deadline(playing))
        stop = asyncio.create_task(playing.stop.wait())
        failure = asyncio.create_task(self._recorder.failure(playing.endpoint))
        ends: set[asyncio.Task[Any]] = {result, deadline, stop, failure}
        wall = limits.wall_seconds + _SILENCE_SECONDS
        try:
            done, _ = await asyncio.wait(ends, timeout=wall, return_when=asyncio.FIRST_COMPLETED)
            deadline.cancel()  # it looks at the launch, which ends now
            played = self._recorder.close(playing.endpoint)
            self._router.ended(sample.id)
            played = replace(played, environment_seconds=max(played.environment_seconds - playing.before, 0.0))
            outcome: FinishedSample | LostSample
            if stop in done and result not in done:
                outcome = stopped(request, self._name, played)
            elif failure in done and result not in done:
                outcome = not_drawn(request, failure.result())
            else:
                late = None if deadline in done else _SILENT
                outcome = await self._outcome(request, played, result if result in done else None, late)
            if isinstance(outcome, LostSample):
                log.warning(
                    "an episode is lost", sample=str(sample.id), environment=request.environment, reason=outcome.reason
                )
            self._report(request, outcome)
            if result not in done:
                self._client.stop(name)
                await asyncio.wait({result}, timeout=_SILENCE_SECONDS)
            self._report(request, None, over=True)
        finally:
            for task in ends:
                task.cancel()
            del self._playing[request.number]

    async def _deadline(self, playing: _Playing) -> None:
        """Waits until the episode has been in its environment for its deadline."""
        await playing.begun.wait()
        seconds = self._config.deadline(playing.environment, playing.request.sample)
        await deadline_reached(self._recorder, playing.endpoint, playing.before + seconds)

    async def _outcome(
        self,
        request: EpisodeRequest,
        played: Played,
        ended: asyncio.Task[EpisodeResult] | None,
        late: EpisodeResult | None,
    ) -> FinishedSample | LostSample:
        """Returns what becomes of an episode, once the store holds it: by its result if it has `ended`, else by `late`.

        An error of our own costs this episode alone, since others may not meet it. Raises StoreUnreachable.
        """
        try:
            result = late if ended is None else ended.result()
            sample = finished(request, self._name, self._contexts, played, result)
            if isinstance(sample, LostSample):
                return sample
            await self._store.put([sample])
        except StoreUnreachable:
            raise
        except Exception as error:
            log.exception("an episode's outcome can't be told", sample=str(request.sample.id))
            reason = f"environment {request.environment}: Longboat failed at the episode's end: {cause_in(error)}"
            return LostSample(request.sample.id, reason, request.sample.evaluation, cause=LossCause.ENVIRONMENT)
        return sample.summary

    def _report(
        self, request: EpisodeRequest, outcome: FinishedSample | LostSample | None, *, over: bool = False
    ) -> None:
        self._reports.append(EpisodeReport(request.number, outcome, over))
        self._reported.set()

    # --- All of them ---

    async def _end_without_driver(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS / 10)
            if self._playing and time.monotonic() - self._heard > DRIVER_SECONDS:
                log.warning("the driver is gone, and with it the episodes", episodes=len(self._playing))
                await self.stop([*self._playing])

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
            self._reported.set()


async def deadline_reached(recorder: Recorder, endpoint: Endpoint, end: float) -> None:
    """Waits until a launch has spent `end` seconds in its environment. Raises KeyError if it has ended at the recorder."""
    while True:
        seconds = end - recorder.environment_seconds(endpoint)
        if seconds <= 0:
            return
        await asyncio.sleep(max(seconds, _CLOCK_SECONDS))
