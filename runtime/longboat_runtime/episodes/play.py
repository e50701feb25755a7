"""What a driver tells the actors of environment pods, what these report, and what becomes of an episode that has ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longboat_crds.environments import COMPUTED_CONTEXTS, EnvironmentHistory, EnvironmentSpec
from longboat_crds.quantities import in_bytes
from longboat_graders import episode_messages
from longboat_graders.episode_messages import EnvironmentFunction, EpisodeBounds, EpisodeResult
from longboat_graders.messages import FunctionFile
from longboat_runtime.recorder.contexts import Contexts
from longboat_runtime.recorder.record import Launch, Limits, Recording
from longboat_runtime.recorder.server import Endpoint, Played
from longboat_runtime.samples import (
    Episode,
    EpisodeEnd,
    EpisodeTurn,
    FinishedSample,
    FinishReason,
    GeneratedSample,
    LossCause,
    LostSample,
    SampleRequest,
)
from longboat_runtime.trajectories import trajectory
from longboat_runtime.turns import EngineDeaths


@dataclass(frozen=True, slots=True)
class EpisodeConfig:
    """What an actor plays: `environments` by their places in the spec, with a `model` of that name, whose context has so many tokens.

    The environments' server listens at `socket`. `held_out_deadline` is that of evaluations, in
    seconds, where the environments' own doesn't hold.
    """

    environments: Mapping[int, EnvironmentSpec]
    model: str
    context: int
    socket: Path
    held_out_deadline: float | None = None

    def deadline(self, environment: EnvironmentSpec, sample: SampleRequest) -> float:
        """Returns how many seconds the sample may spend in its environment: held-out ones may have a deadline of their own."""
        own = self.held_out_deadline if sample.evaluation else None
        return float(environment.limits.deadline_seconds if own is None else own)


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """One launch of a sample: `environment` plays it, and gets `task`. No other launch of the job has its `number`.

    `arguments` are those of the chat template, where a request has none of its own.
    """

    number: int
    sample: SampleRequest
    environment: str
    task: Mapping[str, Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EpisodeReport:
    """Tells what became of the sample of a launch, once, and that the launch is `over`: nothing is left of it, and its slot is free.

    The store holds a finished sample by then.
    """

    number: int
    outcome: FinishedSample | LostSample | None
    over: bool


def function_of(environment: EnvironmentSpec) -> EnvironmentFunction:
    """Returns what an environment's server loads."""
    file = environment.config_map
    named = None if file is None else FunctionFile(file.name, file.key, file.function)
    return EnvironmentFunction(environment.name, environment.function, named)


def recorder_launch(config: EpisodeConfig, environment: EnvironmentSpec, request: EpisodeRequest) -> Launch:
    """Returns what the recorder is told of a launch. Without `maxComputedTokens` a sample may compute COMPUTED_CONTEXTS contexts."""
    sample, limits = request.sample, environment.limits
    return Launch(
        sample.id,
        sample.seed,
        sample.sampling,
        Limits(
            config.context,
            limits.max_turns,
            limits.max_segments,
            limits.max_computed_tokens or COMPUTED_CONTEXTS * config.context,
        ),
        request.arguments,
        append=environment.history is EnvironmentHistory.APPEND,
        evaluation=sample.evaluation,
    )


def environment_launch(
    environment: EnvironmentSpec, sample: SampleRequest, endpoint: Endpoint
) -> episode_messages.Launch:
    """Returns what the environments' server is told of a launch."""
    limits = environment.limits
    bounds = EpisodeBounds(
        in_bytes(limits.memory), limits.processes, in_bytes(limits.file_size), float(limits.wall_seconds)
    )
    return episode_messages.Launch(endpoint.url, endpoint.secret, endpoint.model, sample.seed, bounds)


def finished(
    request: EpisodeRequest, player: str, contexts: Contexts, played: Played, result: EpisodeResult | None
) -> GeneratedSample | LostSample:
    """Says what becomes of an episode that has ended with `result`, or at its deadline if that is None.

    Rule: it is lost if it failed, its process or its server is gone, or it has no delivered turn; else it is generated. One that ended since
    its server did, or that the server stopped unasked, is only held up by that.
    """
    sample, recording = request.sample, played.recording
    ends = episode_messages.EpisodeEnd
    problem = None
    if result is not None and result.end is not ends.FINISHED:
        problem = f"environment {request.environment}: {result.message or 'its server has ended'}"
    elif not recording.turns:
        how = "reached its deadline" if result is None else "ended"
        problem = (
            f"environment {request.environment}: the episode {how} without a reply of the model. Call it at `model.base_url` with the key "
            "`model.api_key`, or by `model.client()`"
        )
    if problem is not None:
        held_up = result is not None and (result.server_gone or result.end is ends.STOPPED)
        return LostSample(sample.id, problem, sample.evaluation, cause=LossCause.ENVIRONMENT, held_up=held_up)
    segments, reply, trains = trajectory(recording.turns)
    last, drawn = recording.exchanges[-1], recording.turns[-1].token_ids.tolist()
    text, special = contexts.response(drawn, last.text, last.finish_reason, sample.sampling)
    episode = Episode(
        environment=request.environment,
        end=EpisodeEnd.TIMEOUT if result is None else EpisodeEnd.FINISHED,
        reward=None if result is None else result.reward,
        environment_seconds=played.environment_seconds,
        rewards=None if result is None else result.rewards,
        environment_cpu_seconds=0.0 if result is None else result.cpu_seconds,
        message="" if result is not None else f"more than its deadline of seconds in environment {request.environment}",
        turns=turns_of(recording, trains),
        undelivered=recording.undelivered,
        repeats=recording.repeats,
        ignored=recording.ignored,
    )
    return GeneratedSample(
        id=sample.id,
        segments=segments,
        finish_reason=recording.finish_reason,
        text=text,
        engine=player,
        evaluation=sample.evaluation,
        special=special,
        reply=reply,
        episode=episode,
    )


def turns_of(recording: Recording, trains: Sequence[int]) -> tuple[EpisodeTurn, ...]:
    """Returns the turns of a recording for people and rewards; `trains` are the segments that train them."""
    pairs = zip(recording.exchanges, trains, strict=True)
    return tuple(EpisodeTurn(**exchange._asdict(), segment=segment) for exchange, segment in pairs)


def not_drawn(request: EpisodeRequest, error: Exception) -> LostSample:
    """Returns the loss of an episode one of whose turns can't be drawn: to engines if that many have died with it."""
    died = isinstance(error, EngineDeaths)
    cause = LossCause.ENGINE if died else LossCause.ENVIRONMENT
    reason = str(error) if died else f"environment {request.environment}: a turn can't be drawn: {error}"
    return LostSample(request.sample.id, reason, request.sample.evaluation, engine_died=died, cause=cause)


def stopped(request: EpisodeRequest, player: str, played: Played) -> FinishedSample:
    """Returns the report of an episode that was stopped. The store has nothing of it."""
    turns = played.recording.turns
    return FinishedSample(
        id=request.sample.id,
        prompt_tokens=len(turns[0].context) if turns else len(request.sample.prompt_ids),
        tokens=sum(len(turn.token_ids) for turn in turns),
        finish_reason=FinishReason.ABORT,
        spans=(),
        engine=player,
        evaluation=request.sample.evaluation,
        turns=len(turns),
        environment_seconds=played.environment_seconds,
    )
