"""`longboat run`: one RLJob on this machine."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import traceback
from pathlib import Path

from rich.console import Console

from longboat_crds.job import RLJobSpec
from longboat_crds.load import ApiError, load_job
from longboat_runtime.driver.broker import LocalBroker
from longboat_runtime.driver.job import Job
from longboat_runtime.local.display import Display
from longboat_runtime.local.graders import link_config_maps, local_graders
from longboat_runtime.local.picture import draw
from longboat_runtime.problems import SpecProblem

_FAILED, _SUSPENDED = 1, 3


def run_file(file: Path, output: Path | None, config_maps: list[str], *, verbose: bool = False) -> int:
    """Runs the job of `file`; returns the exit status: 0 done, 1 failed, 3 suspended by Ctrl-C."""
    console = Console()
    try:
        job = load_job(file.read_text())
        folders = dict(_named_directory(word) for word in config_maps)
    except (ApiError, ValueError) as error:
        console.print(f"[red]{file} can't be run[/red]\n{error}", highlight=False)
        return _FAILED
    name = job.metadata.name
    root = (output or Path("runs") / name).resolve()
    started = Job(name, on_one_node(job.spec), root, _next_incarnation(root))
    try:
        return asyncio.run(_run(started, folders, console))
    except Exception as error:  # noqa: BLE001 - told to a person
        from longboat_runtime.driver.main import cause_of

        if verbose:
            traceback.print_exc()
        cause = cause_of(error)
        console.print(f"[red]{type(cause).__name__}[/red]: {cause}", highlight=False)
        console.print("Run it again to go on from the newest checkpoint (--verbose shows more).", highlight=False)
        return _FAILED


def on_one_node(spec: RLJobSpec) -> RLJobSpec:
    """The job with all its engines in one rollout pod and all graders in one reward pod: this machine is both (pure)."""
    rollout, pool = spec.rollout, spec.reward_pool
    engines = {"replicas": 1, "engines_per_pod": rollout.replicas * rollout.engines_per_pod}
    graders = {"replicas": 1, "graders_per_pod": pool.replicas * pool.graders_per_pod}
    return spec.model_copy(
        update={"rollout": rollout.model_copy(update=engines), "reward_pool": pool.model_copy(update=graders)}
    )


async def _run(job: Job, config_maps: dict[str, Path], console: Console) -> int:
    import ray

    from longboat_runtime.driver.main import Ending, drive
    from longboat_runtime.local.ray import start_ray

    with tempfile.TemporaryDirectory(prefix="longboat-") as folder, Display(job, console) as display:
        broker = LocalBroker(job.incarnation, display.show)
        _suspend_on_interrupt(broker, console)
        socket = Path(folder) / "graders.sock"
        rewards = link_config_maps(Path(folder) / "rewards", config_maps)
        with local_graders(job.spec.reward_pool.graders_per_pod, socket, rewards):
            start_ray(_resources(job.spec))
            try:
                ending, problem = await drive(job, broker, [display], socket)
            finally:
                ray.shutdown()
    if problem is not None:
        console.print(_explained(problem), highlight=False)
        return _FAILED
    display.summarise()
    console.print(f"picture      {draw(job.root)}\ntensorboard  tensorboard --logdir {job.root}", highlight=False)
    if ending is Ending.DONE:
        console.print(f"model        {job.root / 'export'}" if job.spec.checkpoint.export else "", highlight=False)
        return 0
    console.print("Suspended: run it again to go on.", highlight=False)
    return _SUSPENDED


def _suspend_on_interrupt(broker: LocalBroker, console: Console) -> None:
    """The first Ctrl-C suspends the job, the second one ends it at once."""
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        console.print("Suspending at the next step boundary; Ctrl-C again ends at once.", highlight=False)
        loop.remove_signal_handler(signal.SIGINT)
        broker.suspend()

    loop.add_signal_handler(signal.SIGINT, interrupted)


def _explained(problem: SpecProblem) -> str:
    where = f" {problem.field}" if problem.field else ""
    return f"[red]{problem.reason}[/red]{where}\n{problem.message}"


def _resources(spec: RLJobSpec) -> dict[str, float]:
    """What the job's pods would offer, on one node."""
    return {
        "longboat-store": 1,
        "longboat-rollout": spec.rollout.engines_per_pod,
        "longboat-reward": spec.reward_pool.graders_per_pod,
        "longboat-trainer": spec.trainer.replicas,
    }


def _named_directory(word: str) -> tuple[str, Path]:
    name, equals, directory = word.partition("=")
    if not (name and equals and Path(directory).is_dir()):
        raise ValueError(f"--config-map {word}: write NAME=DIRECTORY with a directory that exists")
    return name, Path(directory)


def _next_incarnation(root: Path) -> int:
    numbers = [int(path.name) for path in (root / "incarnations").glob("*") if path.name.isdigit()]
    return max(numbers, default=0) + 1
