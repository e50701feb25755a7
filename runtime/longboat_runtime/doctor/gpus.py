"""GPUs of the container, by NVIDIA's management library (NVML), which makes no context and so takes no memory of theirs."""

from __future__ import annotations

import ctypes
import runpy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from longboat_runtime.doctor.finding import Finding, note, ok, size, skipped, wrong
from longboat_runtime.doctor.place import Place

DEVICES, DRIVER = "devices", "driver"
# By major version of CUDA: the oldest driver, and the least compute capability that its libraries are built for.
# Source: NVIDIA, CUDA Compatibility (minor version compatibility), and release notes of CUDA 12.0 and 13.0.
_OLDEST_DRIVER = {12: "525", 13: "580"}
_LEAST_CAPABILITY = {12: (5, 0), 13: (7, 5)}
# NVML's numbers for two queries about a pair of GPUs, and for the answer yes; some of pynvml's own names are mistyped.
_P2P_READ, _P2P_NVLINK, _P2P_OK = 0, 2, 0
# NVML's states of a GPU in a fabric of NVSwitches.
_FABRIC_STATES = {1: "not started", 2: "in progress"}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: `memory` in bytes, compute `capability`. `fabric` is the state of its fabric if that isn't ready."""

    name: str
    memory: int
    capability: tuple[int, int]
    fabric: str | None = None


@dataclass(frozen=True, slots=True)
class Gpus:
    """Describes the GPUs of the container, and what torch and vLLM in it are built for.

    `cuda` is the newest that the `driver` supports, `torch_cuda` that of torch, None if it is built for CPUs or isn't there.
    `engines_on_gpus`: vLLM is there, built for GPUs. `files` counts device files, `problem` is NVML's error. `links` says of each pair of
    GPUs how one reads the other's memory: "NVLink", "PCIe" or "no".
    """

    devices: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: tuple[int, int] | None = None
    torch_cuda: tuple[int, int] | None = None
    engines_on_gpus: bool = False
    files: int = 0
    problem: str | None = None
    links: Mapping[tuple[int, int], str] = field(default_factory=dict)


def judge_devices(gpus: Gpus, place: Place) -> Finding:
    """Judges the number and kind of GPUs by what the role needs. Pure.

    Engines and trainers of an image for GPUs need those that their agent offers; no other place needs any.
    """
    count, where = len(gpus.devices), place.container or "this machine"
    if not count:
        return _without_devices(gpus, place)
    kinds = sorted(
        {f"{gpu.name}, {size(gpu.memory)}, compute capability {_dotted(gpu.capability)}" for gpu in gpus.devices}
    )
    text = f"{count} x {'; '.join(kinds)}"
    stuck = sorted({gpu.fabric for gpu in gpus.devices if gpu.fabric})
    if stuck:
        cure = (
            "start NVIDIA's Fabric Manager on the node, or see its log: CUDA can't be used before the fabric is ready"
        )
        return wrong(DEVICES, f"{text}; their NVSwitch fabric is {stuck[0]}", cure)
    least = _LEAST_CAPABILITY.get((gpus.torch_cuda or (0, 0))[0], (0, 0))
    if any(gpu.capability < least for gpu in gpus.devices):
        cure = f"choose nodes with GPUs of compute capability {_dotted(least)} or more (nodeSelector of the runtime template)"
        return wrong(DEVICES, f"{text}; torch for CUDA {_dotted(gpus.torch_cuda)} has no code for it", cure)
    if place.container == "rollout" and not gpus.engines_on_gpus:
        return wrong(
            DEVICES,
            f"{text}; vLLM here is the build for CPUs",
            "use the image longboat-runtime-gpu in the runtime template",
        )
    if place.computes and count < place.offers:
        cure = f"have the runtime template's container {where} ask for {place.offers} nvidia.com/gpu, or the job for fewer devices a pod"
        return wrong(DEVICES, f"{text}; the job expects {place.offers} in this pod", cure)
    if place.computes and count > place.offers:
        cure = (
            f"lower the container's limit of nvidia.com/gpu to {place.offers}, or have the job use more devices a pod"
        )
        return note(DEVICES, f"{text}; the job uses {place.offers} of them", cure)
    return ok(DEVICES, text)


def _without_devices(gpus: Gpus, place: Place) -> Finding:
    where = place.container or "this machine"
    if gpus.files and not gpus.engines_on_gpus and gpus.problem is None:
        text = f"{gpus.files} device files /dev/nvidia*, and this image is built for CPUs"
        cure = "use the image longboat-runtime-gpu in the runtime template, or have the container ask for no GPU"
        return (wrong if place.computes else note)(DEVICES, text, cure)
    if gpus.files or gpus.problem:
        files = f"{gpus.files} device files /dev/nvidia*, but " if gpus.files else ""
        cure = (
            "see `nvidia-smi` on the node, and have its NVIDIA Container Toolkit start the pod (runtimeClassName: nvidia, where the cluster "
            "has that class)"
        )
        return wrong(DEVICES, f"{files}NVIDIA's library can't be used: {gpus.problem or 'it is not mounted'}", cure)
    if place.computes and gpus.engines_on_gpus:
        cure = f"have the runtime template's container {where} ask for nvidia.com/gpu, or use the image longboat-runtime, for CPUs"
        return wrong(DEVICES, "no GPU, and this image is built for GPUs", cure)
    if place.container is None and gpus.engines_on_gpus:
        return note(
            DEVICES,
            "no GPU, and vLLM here is the build for GPUs",
            "to run jobs here, install longboat with the extra [cpu]",
        )
    if place.computes or place.container is None:
        return ok(DEVICES, "no GPU: models are computed on CPUs")
    return skipped(DEVICES, f"no GPU, and {where} needs none")


def judge_driver(gpus: Gpus) -> Finding:
    """Judges the driver by the CUDA that torch is built for. Pure.

    A driver runs programs of its own major version of CUDA and of older ones; of its own also those of a newer minor version.
    """
    if gpus.driver is None or gpus.cuda is None:
        return skipped(DRIVER, "no NVIDIA driver is mounted")
    text = f"{gpus.driver}, for CUDA up to {_dotted(gpus.cuda)}"
    if gpus.torch_cuda is None:
        return note(DRIVER, f"{text}; torch here is built for CPUs, or missing", "use the image longboat-runtime-gpu")
    text = f"{text}; torch is built for CUDA {_dotted(gpus.torch_cuda)}"
    if gpus.cuda[0] < gpus.torch_cuda[0]:
        oldest = _OLDEST_DRIVER.get(gpus.torch_cuda[0])
        newer = f"{oldest} or newer" if oldest else f"one for CUDA {_dotted(gpus.torch_cuda)}"
        return wrong(DRIVER, text, f"update the NVIDIA driver of the node to {newer}")
    return ok(DRIVER, text)


def own_gpus() -> Gpus:
    """Looks at the GPUs that this container may use."""
    files = len([*Path("/dev").glob("nvidia[0-9]*")])
    base = Gpus(files=files, torch_cuda=_torch_cuda(), engines_on_gpus=_installed("vllm"))
    try:
        import pynvml
    except ImportError:
        return base
    return gpus_by(pynvml, base)


def gpus_by(nvml: Any, base: Gpus) -> Gpus:
    """Returns `base` with what `nvml` (the module pynvml) says of driver and devices."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        # Where there is no GPU there is no library: the container toolkit mounts both.
        return base if error.value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND else replace(base, problem=str(error))
    try:
        cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        pairs = [(first, second) for first in range(len(handles)) for second in range(first)]
        return replace(
            base,
            driver=nvml.nvmlSystemGetDriverVersion(),
            cuda=(cuda // 1000, cuda % 1000 // 10),
            devices=tuple(_gpu(nvml, handle) for handle in handles),
            links={(second, first): _link(nvml, handles[first], handles[second]) for first, second in pairs},
        )
    except nvml.NVMLError as error:
        return replace(base, problem=str(error))
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, handle: Any) -> Gpu:
    name, memory = nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetMemoryInfo(handle).total
    return Gpu(name, memory, nvml.nvmlDeviceGetCudaComputeCapability(handle), _FABRIC_STATES.get(_fabric(nvml, handle)))


def _fabric(nvml: Any, handle: Any) -> int:
    info = nvml.c_nvmlGpuFabricInfo_t()
    try:
        nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    except nvml.NVMLError:
        return 0  # the driver is older than fabrics
    return int(info.state)


def _link(nvml: Any, first: Any, second: Any) -> str:
    try:
        if nvml.nvmlDeviceGetP2PStatus(first, second, _P2P_NVLINK) == _P2P_OK:
            return "NVLink"
        return "PCIe" if nvml.nvmlDeviceGetP2PStatus(first, second, _P2P_READ) == _P2P_OK else "no"
    except nvml.NVMLError:
        return "no"


def _torch_cuda() -> tuple[int, int] | None:
    """Returns the version of CUDA that the installed torch is built for, without importing it, which takes seconds."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    cuda = runpy.run_path(str(Path(spec.origin).with_name("version.py"))).get("cuda")
    if not cuda:
        return None
    major, minor = cuda.split(".")[:2]
    return int(major), int(minor)


def _installed(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True


def _dotted(version: tuple[int, int] | None) -> str:
    return ".".join(map(str, version or ()))
