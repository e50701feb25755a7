"""`longboat profile`: measures the engines of a job, of each size that it allows, on this machine."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from longboat_crds.job import RLJobSpec
from longboat_crds.load import ApiError, load_job
from longboat_crds.problems import spec_problem_in
from longboat_runtime.local.run import named_directory, on_this_machine
from longboat_runtime.rollout.profile import ProfiledEngine, ProfileFile
from longboat_runtime.rollout.protocol import ReshapePhase

_FAILED = 1


def profile_file(file: Path, output: Path, volumes: list[str]) -> int:
    """Measures the engines of the job of `file`, and writes the profile to `output`; returns the exit status.

    It is 0 if done, 1 if a person has to change something; other errors are raised.
    """
    console = Console()
    try:
        job = load_job(file.read_text())
        mounted = dict(named_directory("--volume", word) for word in volumes)
        spec = on_this_machine(job.spec, mounted, all_used=False)
        if not output.resolve().parent.is_dir():
            raise ValueError(f"--output {output}: there is no directory {output.resolve().parent}")
    except (ApiError, ValueError) as error:
        console.print(f"[red]{file} can't be profiled[/red]\n{error}", highlight=False)
        return _FAILED
    try:
        profile = measure(spec, console)
    except Exception as error:
        problem = spec_problem_in(error)
        if problem is None:
            raise
        where = f" {problem.field}" if problem.field else ""
        console.print(f"[red]{problem.reason}[/red]{where}\n{problem.message}", highlight=False)
        return _FAILED
    profile.write(output)
    console.print(_table(profile))
    console.print(f"written to {output}: name it in spec.rollout.parallelism.profile", highlight=False)
    return 0


def measure(spec: RLJobSpec, console: Console) -> ProfileFile:
    """Measures an engine of each size within the bounds of rollout.parallelism, one after the other, on a Ray of its own.

    Raises SpecProblem for what a person has to change.
    """
    import ray

    from longboat_runtime.driver.job import Job
    from longboat_runtime.driver.shape_plan import bounds_of
    from longboat_runtime.local.ray import start_ray
    from longboat_runtime.object_store import MINIMAL_OBJECT_STORE
    from longboat_runtime.ray_nodes import ROLLOUT_RESOURCE
    from longboat_runtime.rollout.engine import engine_config
    from longboat_runtime.rollout.factory import read_model_config
    from longboat_runtime.rollout.profile import identity

    config = engine_config(spec, "profile", (0,))
    model = read_model_config(config)
    bounds = bounds_of(Job("profile", spec, Path(), 0))
    allowed = spec.rollout.parallelism
    sizes = bounds.within(allowed.min_tensor_parallel, allowed.max_tensor_parallel).sizes
    start_ray({ROLLOUT_RESOURCE: spec.rollout.devices_per_pod}, MINIMAL_OBJECT_STORE)
    try:
        engines = {size: _measured(spec, size, console) for size in sizes}
    finally:
        ray.shutdown()
    return ProfileFile(model=spec.model.path, engine=identity(config, model), engines=engines)


def _measured(spec: RLJobSpec, size: int, console: Console) -> ProfiledEngine:
    import ray

    from longboat_runtime.ray_nodes import ROLLOUT_RESOURCE
    from longboat_runtime.rollout.engine import engine_config
    from longboat_runtime.rollout.environment import NodeDevices
    from longboat_runtime.rollout.measurement import STEPS, MeasuredEngine, filled, grid
    from longboat_runtime.rollout.ray_cluster import rollout_nodes

    (node,) = rollout_nodes(ray.nodes()).values()
    config = engine_config(spec, f"profile-{size}", tuple(range(size)))
    console.print(f"engine of {size} device{'s' * (size > 1)}: starts", highlight=False)
    began = time.monotonic()
    has: NodeDevices = node.has
    actor = ray.remote(MeasuredEngine).options(num_cpus=0, resources={ROLLOUT_RESOURCE: size}).remote(config, has)
    kv_tokens, longest = ray.get(actor.start.remote())
    started = time.monotonic() - began
    sequences, contexts = grid(kv_tokens, spec.rollout.max_sequences, longest)
    cells: dict[tuple[int, int], float] = {}
    prefills: list[tuple[int, float]] = []
    for n in sequences:
        for context in contexts:
            if n * (context + STEPS + 2) > kv_tokens and cells:
                continue
            if measured_seconds := ray.get(actor.cell.remote(n, context)):
                cells[n, context] = measured_seconds[0]
                prefills.append((n * context, measured_seconds[1]))
        console.print(f"  {n} sequences: {cells.get((n, contexts[0]), 0.0) * 1000:.1f} ms a step", highlight=False)
    began = time.monotonic()
    ray.get(actor.shutdown.remote())
    ray.kill(actor)
    ended = time.monotonic() - began
    half = sorted(prefills)[len(prefills) // 2 :]
    return ProfiledEngine(
        kv_tokens=kv_tokens,
        prefill_seconds=median(seconds for _, seconds in half),
        sequences=sequences,
        contexts=contexts,
        seconds=filled(sequences, contexts, cells),
        reshape_seconds={ReshapePhase.END: ended, ReshapePhase.START: started},
    )


def _table(profile: ProfileFile) -> Table:
    """Makes the table of milliseconds of steps by sequences and tokens in context, for each size of engines."""
    table = Table(title="milliseconds of a step", title_justify="left")
    table.add_column("devices")
    table.add_column("sequences", justify="right")
    contexts = sorted({context for engine in profile.engines.values() for context in engine.contexts})
    for context in contexts:
        table.add_column(f"{context} tokens", justify="right")
    for size, engine in profile.engines.items():
        for n, row in zip(engine.sequences, engine.seconds, strict=True):
            by_context = dict(zip(engine.contexts, row, strict=True))
            cells = (f"{by_context[c] * 1000:.1f}" if c in by_context else "" for c in contexts)
            table.add_row(str(size), str(n), *cells)
        starts = engine.reshape_seconds[ReshapePhase.START]
        kv = f"KV cache {engine.kv_tokens} tokens, prompts {engine.prefill_seconds * 1e6:.0f} us a token, start {starts:.1f} s"
        table.add_row(str(size), kv, end_section=True)
    return table
