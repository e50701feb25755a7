"""`longboat episode`: plays one episode of one row on this machine, and shows what would be trained of it."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.text import Text

from longboat_crds.environments import environment_of
from longboat_crds.job import RLJobSpec
from longboat_crds.load import ApiError, load_job
from longboat_crds.problems import SpecProblem, spec_problem_in, suggestion
from longboat_graders.episode_messages import EpisodeResult
from longboat_runtime.data.source import read_row
from longboat_runtime.driver.job import Job
from longboat_runtime.episodes.actor import deadline_reached
from longboat_runtime.episodes.client import EpisodeClient
from longboat_runtime.episodes.play import (
    EpisodeConfig,
    EpisodeRequest,
    environment_launch,
    finished,
    function_of,
    not_drawn,
    recorder_launch,
    turns_of,
)
from longboat_runtime.episodes.tasks import Task, Tasks
from longboat_runtime.local.display import explained
from longboat_runtime.local.graders import link_config_maps, local_environments
from longboat_runtime.local.run import named_directory, on_this_machine
from longboat_runtime.recorder.contexts import Contexts
from longboat_runtime.recorder.record import Beginning, Recording
from longboat_runtime.recorder.server import Bounds, Played, Recorder
from longboat_runtime.reward.combine import applicable
from longboat_runtime.reward.episodes import by_environment, with_episode
from longboat_runtime.sample_files.command import folded, one_line, shown, visible
from longboat_runtime.sample_files.files import TURN, turns
from longboat_runtime.samples import (
    FinishReason,
    GeneratedSample,
    LostSample,
    Row,
    SampleId,
    SampleRequest,
    Segment,
    sample_seed,
)
from longboat_runtime.trajectories import trajectory
from longboat_runtime.turns import Turns

_FAILED, _INTERRUPTED = 1, 130
_PLAYER = "desk"
# The variable from which OpenAI's client takes a key.
_KEY = "OPENAI_API_KEY"
_REASONS = {
    Beginning.TOOLS: "its tools or template arguments are others than those of the turns before",
    Beginning.TEMPLATE: "the chat template renders the turns before anew instead of appending to them",
    Beginning.MESSAGES: "its messages don't continue an earlier turn",
}


# Says what tokens are.
Decode = Callable[[Sequence[int]], str]
# Tokens of a context that nothing limits here.
_UNBOUNDED = 2**31


@dataclass(frozen=True, slots=True)
class Model:
    """Draws the turns of an episode. `context` bounds each of them; `decode` says what tokens are, None if there are none.

    `arguments` are the chat template's for the episode's row.
    """

    turns: Turns
    contexts: Contexts
    context: int
    arguments: Mapping[str, Any]
    decode: Decode | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What has become of an episode: what it recorded, and what its environment returned, None if that was ended before."""

    sample: GeneratedSample | LostSample
    played: Played
    result: EpisodeResult | None


def episode_file(
    file: Path,
    environment: str | None,
    row: int,
    url: str | None,
    model: str | None,
    config_maps: list[str],
    volumes: list[str],
    *,
    full: bool,
) -> int:
    """Plays one episode of the job of `file`. Returns the exit status: 0 if it counts, 1 if it is lost or can't be played."""
    console = Console(highlight=False)
    try:
        job = load_job(file.read_text())
        folders = dict(named_directory("--config-map", word) for word in config_maps)
        mounted = dict(named_directory("--volume", word) for word in volumes)
        spec = on_this_machine(job.spec, mounted)
        _check_name(spec, environment)
        played_row, task = _task(spec, row, environment)
        endpoint = _endpoint_model(url, model)
    except (ApiError, SpecProblem, ValueError) as error:
        console.print(f"[red]{file} can't be played[/red]")
        console.print(Text(str(error)), soft_wrap=True)
        return _FAILED
    played_job = Job(job.metadata.name, spec, Path(), 0)
    try:
        outcome, decode = asyncio.run(_run(played_job, played_row, task, endpoint, folders, console))
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:
        problem = spec_problem_in(error)
        if problem is None:
            raise
        console.print(explained(problem, "red"), soft_wrap=True)
        return _FAILED
    for line in report(spec, played_row, task, outcome, decode, full=full):
        console.print(line, soft_wrap=True)
    return _FAILED if isinstance(outcome.sample, LostSample) else 0


def _check_name(spec: RLJobSpec, name: str | None) -> None:
    """Raises ValueError unless the job has this environment; without a name, unless it has any."""
    names = [environment.name for environment in spec.environments or ()]
    if not names:
        raise ValueError("the job has no `environments`: it trains on one response to each prompt")
    if name is not None and name not in names:
        raise ValueError(
            f"--environment {name}: the job has no such environment.{suggestion(name, names)} It has {', '.join(names)}."
        )


def _task(spec: RLJobSpec, number: int, environment: str | None) -> tuple[Row, Task]:
    """Reads a row. Raises SpecProblem, and ValueError if another environment plays it."""
    try:
        row = read_row(spec.dataset, number)
    except IndexError as error:
        raise ValueError(f"--row {number}: {error}") from error
    task = Tasks(spec).task(row)
    if environment not in (None, task.environment):
        domain = f", whose domain is {row.domain!r}," if row.domain else ""
        raise ValueError(
            f"--environment {environment}: row {number}{domain} is played by {task.environment}. Name that, or another row."
        )
    return row, task


async def _run(
    job: Job, row: Row, task: Task, endpoint: Model | None, config_maps: Mapping[str, Path], console: Console
) -> tuple[Outcome, Decode | None]:
    """Plays the row against the endpoint, or the job's own model without one. Returns what tokens are, too, if there are any."""
    pools = [pool for pool in job.spec.environment_pools or () if pool.name == task.pool]
    with tempfile.TemporaryDirectory(prefix="longboat-") as name, console.status("starting") as status:
        folder = Path(name)
        files = link_config_maps(folder / "config-maps", config_maps)
        async with AsyncExitStack() as stack:
            sockets = stack.enter_context(local_environments(pools, folder, files))
            model = endpoint
            if model is None:
                status.update(f"loading the model {job.spec.model.path}")
                model = await stack.enter_async_context(_job_model(job.spec, row))
            return await _play(job, row, task, model, sockets[task.pool], status.update), model.decode


def _endpoint_model(url: str | None, model: str | None) -> Model | None:
    """Returns the model behind an endpoint, if one is named. Raises ValueError without a key."""
    if url is None and model is None:
        return None
    if url is None or model is None:
        raise ValueError(
            "--url and --model belong together: an endpoint's URL, such as http://127.0.0.1:8000/v1, and the name of a model that it serves"
        )
    if not os.environ.get(_KEY):
        raise ValueError(f"--url {url}: set {_KEY} to its key; where it takes none, to any text")
    from longboat_runtime.local.endpoint import EndpointContexts, EndpointTurns

    contexts = EndpointContexts()
    return Model(EndpointTurns(url, model, contexts), contexts, _UNBOUNDED, {}, None)


@asynccontextmanager
async def _job_model(spec: RLJobSpec, row: Row) -> AsyncIterator[Model]:
    """Starts one engine with the job's own weights, on a Ray of its own. Raises SpecProblem."""
    import ray

    from longboat_runtime.data.prompts import context_length
    from longboat_runtime.data.source import open_prompts
    from longboat_runtime.driver.episodes import stop_tokens
    from longboat_runtime.local.ray import start_ray
    from longboat_runtime.object_store import MINIMAL_OBJECT_STORE
    from longboat_runtime.ray_nodes import ROLLOUT_RESOURCE
    from longboat_runtime.rollout.actor import EngineActor
    from longboat_runtime.rollout.engine import engine_config
    from longboat_runtime.rollout.engine_client import EngineClient
    from longboat_runtime.rollout.ray_cluster import rollout_nodes
    from longboat_runtime.rollout.turn_router import TurnEngines, TurnRouter

    prompts = open_prompts(spec)
    devices = spec.rollout.tensor_parallel
    start_ray({ROLLOUT_RESOURCE: devices}, MINIMAL_OBJECT_STORE)
    try:
        (node,) = rollout_nodes(ray.nodes()).values()
        config = replace(engine_config(spec, _PLAYER, tuple(range(devices))), reads_weights=True)
        actor = (
            ray.remote(EngineActor)
            .options(num_cpus=0, resources={ROLLOUT_RESOURCE: devices})
            .remote(config, node.has, None)
        )
        await actor.start.remote()
        router = TurnRouter(_PLAYER)
        router.update(TurnEngines(1, {config.name: EngineClient(actor)}))
        contexts = Contexts(prompts.chat, prompts.tokenizer, stop_tokens(spec, prompts))
        context = min(context_length(spec.model), spec.trainer.max_tokens_per_bin)
        arguments = prompts.prompt(row.columns, f"row {row.prompt.row}").arguments
        yield Model(router, contexts, context, arguments, prompts.tokenizer.decode)
    finally:
        ray.shutdown()


async def _play(job: Job, row: Row, task: Task, model: Model, socket: Path, tell: Callable[[str], None]) -> Outcome:
    """Plays the row as its first sample is played. Raises SpecProblem if the environment can't be loaded."""
    spec = job.spec
    environment = environment_of(spec.environments or (), row.domain)
    assert environment is not None  # `Tasks` has found it
    place = (spec.environments or []).index(environment)
    config = EpisodeConfig({place: environment}, Path(spec.model.path).name or "model", model.context, socket)
    sample = SampleId(0, row.prompt.row, 0, 0)
    request = EpisodeRequest(
        0,
        SampleRequest(sample, (), sample_seed(job.identity, spec.rounds.seed, sample), job.sampling),
        environment.name,
        task.columns,
        model.arguments,
    )
    recorder, client = Recorder(model.turns, model.contexts, config.model, Bounds()), EpisodeClient(socket)
    await recorder.start()
    try:
        tell(f"loading environment {environment.name}")
        problem = await client.load(function_of(environment), f"spec.environments[{place}]")
        if problem is not None:
            raise problem
        tell(f"playing row {row.prompt.row} in {environment.name}")
        endpoint = recorder.open(recorder_launch(config, environment, request))
        launch = environment_launch(environment, request.sample, endpoint)
        playing = asyncio.create_task(client.play(_PLAYER, environment.name, task.columns, launch))
        failure = asyncio.create_task(recorder.failure(endpoint))
        deadline = asyncio.create_task(
            deadline_reached(recorder, endpoint, config.deadline(environment, request.sample))
        )
        ends: set[asyncio.Task[Any]] = {playing, failure, deadline}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            deadline.cancel()  # it looks at the launch, which ends now
            played = recorder.close(endpoint)
            result = playing.result() if playing.done() else None
            if result is None:
                client.stop(_PLAYER)
                await asyncio.wait({playing})
                if failure.done():
                    return Outcome(not_drawn(request, failure.result()), played, None)
            return Outcome(finished(request, _PLAYER, model.contexts, played, result), played, result)
        finally:
            for end in ends:
                end.cancel()
    finally:
        await recorder.stop()
        await client.close()


# --- What is printed ---


def report(
    spec: RLJobSpec,
    row: Row,
    task: Task,
    outcome: Outcome,
    decode: Decode | None,
    *,
    full: bool,
) -> list[Text]:
    """Returns the lines about an episode: its turns, segments, reward and seconds (pure). `decode` None: there are no tokens."""
    recording, result = outcome.played.recording, outcome.result
    lines = [
        Text(f"row {row.prompt.row} in environment {task.environment}", "bold"),
        Text(f"task {one_line(json.dumps(dict(task.columns), ensure_ascii=False, default=str), full=full)}", "dim"),
    ]
    if recording.turns:
        lines += _turns(recording, decode, full=full)
    if result is not None and result.output:
        lines += [Text("printed", "bold"), Text(shown(result.output.rstrip(), full=full), "dim")]
    lines += _ends(spec, row, outcome)
    seconds = outcome.played.environment_seconds
    drawing = sum(exchange.seconds for exchange in recording.exchanges)
    lines.append(Text(f"seconds {seconds:.2f} in the environment, {drawing:.2f} for the model's turns"))
    return lines


def _turns(recording: Recording, decode: Decode | None, *, full: bool) -> list[Text]:
    segments, _, trains = trajectory(recording.turns)
    made = turns_of(recording, trains)
    rows = pa.array(turns(made), TURN).to_pylist()  # with nulls where there is nothing
    lines = [Text(line, "" if line.startswith(">") else "cyan") for line in folded(rows, full=full)]
    for number, segment in enumerate(segments):
        own = [turn for turn, trained in enumerate(trains) if trained == number]
        size = f"{segment.size.computed} tokens, {segment.size.trained} of them trained" if decode else "no tokens"
        lines.append(Text(f"segment {number}: {size}, in {len(own)} turn{'s' * (len(own) != 1)}", "bold"))
        beginning, differs = made[own[0]].beginning, made[own[0]].differs
        if beginning in _REASONS:
            at = "" if differs is None else f": its message {differs} is the first that none of them has"
            lines.append(Text(f"  begun by turn {own[0]}, since {_REASONS[Beginning(beginning)]}{at}", "yellow"))
        if decode:
            lines += _runs(segment, decode, full=full)
    if decode is None:
        lines.append(
            Text(
                "An endpoint hands out no tokens: nothing is trained, and limits of contexts aren't checked.", "yellow"
            )
        )
    return lines


def _runs(segment: Segment, decode: Decode, *, full: bool) -> list[Text]:
    """Returns the texts of a segment's runs of tokens: context, and what is trained."""
    ids, lines, start = segment.token_ids.tolist(), [], 0
    for trained in (*segment.trained, None):
        end = len(ids) if trained is None else trained.start
        if end > start:
            lines.append(Text(f"  context {end - start:>5}  {one_line(decode(ids[start:end]), full=full)}", "dim"))
        if trained is not None:
            lines.append(
                Text(
                    f"  trained {trained.end - trained.start:>5}  {one_line(decode(ids[trained.start : trained.end]), full=full)}",
                    "green",
                )
            )
            start = trained.end
    return lines


def _ends(spec: RLJobSpec, row: Row, outcome: Outcome) -> list[Text]:
    """Returns the lines about the reward, and about what went wrong."""
    sample, recording = outcome.sample, outcome.played.recording
    lines = []
    counts = {"turns that nobody received": recording.undelivered, "repeated requests": recording.repeats}
    counts |= {
        f"times {name!r} was ignored, since the job's sampling holds or nothing has that name": count
        for name, count in recording.ignored.items()
    }
    lines += [Text(f"{count} {what}", "yellow") for what, count in counts.items() if count]
    if isinstance(sample, LostSample):
        return [*lines, Text(f"lost: {visible(sample.reason)}", "red")]
    if sample.finish_reason is FinishReason.LENGTH:
        lines.append(Text("truncated: a limit of tokens, turns or segments was reached", "yellow"))
    episode = sample.episode
    assert episode is not None
    if outcome.result is None:
        return [*lines, Text(f"timeout: {episode.message}", "red")]
    if episode.reward is not None:
        each = f" = {' + '.join(f'{reward:g}' for reward in episode.rewards)}" if episode.rewards else ""
        return [*lines, Text(f"reward {episode.reward:g}{each}", "bold")]
    rewards = applicable(spec.rewards, row.domain)
    problem = next(
        (outcome.message for outcome in with_episode(rewards, {}, episode.outcome).values() if outcome.message), None
    )
    if problem is not None:
        return [*lines, Text(f"no reward: {problem}", "red")]
    graders = ", ".join(reward.name for reward in rewards if not by_environment(reward))
    return [*lines, Text(f"no reward of the environment's: {graders} would grade it", "bold")]
