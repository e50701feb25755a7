"""Puts the environment pods of a job together with its rows and engines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import ray

from longboat_crds.environments import environments_of
from longboat_crds.job import RLJobSpec
from longboat_runtime.data.prompts import Prompts, context_length
from longboat_runtime.data.protocol import PromptSource
from longboat_runtime.driver.job import Job
from longboat_runtime.episodes.client import SOCKET
from longboat_runtime.episodes.cluster import EpisodeCluster
from longboat_runtime.episodes.fleet import EpisodeFleet
from longboat_runtime.episodes.play import EpisodeConfig
from longboat_runtime.episodes.tasks import Task, Tasks
from longboat_runtime.recorder.contexts import Contexts
from longboat_runtime.rollout.protocol import RolloutFleet
from longboat_runtime.samples import Row, SampleRequest
from longboat_runtime.store.client import StoreClient


class SampleTasks:
    """`episodes.fleet.TaskSource` over the rows of training and of evaluation."""

    def __init__(self, tasks: Tasks, source: PromptSource, evaluation: Iterable[Row]) -> None:
        self._tasks, self._source = tasks, source
        self._held_out = {row.prompt.row: row for row in evaluation}

    def task_of(self, request: SampleRequest) -> Task:
        """Returns what the environment of a sample gets. Raises SpecProblem."""
        prompt = request.id.prompt
        return self._tasks.task(self._held_out[prompt.row] if request.evaluation else self._source.row(prompt))


def open_episodes(
    job: Job,
    prompts: Prompts,
    tasks: SampleTasks,
    fleet: RolloutFleet,
    store: StoreClient,
    sockets: Mapping[str, Path] | None,
) -> EpisodeFleet:
    """Opens all environment pods; nothing runs there yet. `sockets` is where environments listen on the nodes of each pool."""
    spec = job.spec
    stops = stop_tokens(spec, prompts)
    contexts = Contexts(prompts.chat, prompts.tokenizer, stops)
    context = min(context_length(spec.model), spec.trainer.max_tokens_per_bin)
    configs = {
        pool.name: EpisodeConfig(
            environments_of(spec.environments, pool.name),
            Path(spec.model.path).name or "model",
            context,
            SOCKET if sockets is None else sockets[pool.name],
            None if spec.dataset.evaluation is None else spec.dataset.evaluation.deadline_seconds,
        )
        for pool in spec.environment_pools or ()
    }
    return EpisodeFleet(configs, tasks, fleet, store, EpisodeCluster(ray.put(contexts), store))


def stop_tokens(spec: RLJobSpec, prompts: Prompts) -> set[int]:
    """Returns the tokens that end a turn: the tokenizer's, those of the model's generation config, and the job's."""
    stops = set(spec.rollout.sampling.stop_token_ids)
    if prompts.tokenizer.eos_token_id is not None:
        stops.add(int(prompts.tokenizer.eos_token_id))
    with suppress(OSError, ValueError):
        own = json.loads((Path(spec.model.path) / "generation_config.json").read_text()).get("eos_token_id")
        stops.update(own if isinstance(own, list) else [own] if own is not None else [])
    return stops
