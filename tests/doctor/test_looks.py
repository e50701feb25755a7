"""What `longboat doctor` gathers: on this machine, and from stand-ins of what this machine hasn't."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import shutil
import socket
import subprocess
import sys
import sysconfig
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from longboat_runtime.doctor import libraries
from longboat_runtime.doctor.finding import Verdict
from longboat_runtime.doctor.gpus import Gpus, gpus_by
from longboat_runtime.doctor.head import Reached, reach
from longboat_runtime.doctor.place import Place
from longboat_runtime.doctor.volumes import Directory, probed

DOCTOR = [sys.executable, "-m", "longboat_runtime.cli", "doctor"]


def test_the_command_says_how_this_machine_is_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run([*DOCTOR, "--json"], cwd=tmp_path, capture_output=True, text=True, check=False)
    findings = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = [finding for finding in findings if finding["verdict"] == "wrong"]
    assert done.returncode == bool(wrong), done.stderr
    assert [finding["check"] for finding in findings if finding["check"] == f"volume {tmp_path}"]
    assert {"devices", "driver", "NCCL in the pod", "NCCL between pods", "shared memory", "Ray head", "clock"} <= {
        finding["check"] for finding in findings
    }
    assert not [*tmp_path.iterdir()]


def test_the_doctor_of_a_graders_container_needs_no_more_than_graders_have() -> None:
    """The graders' image has neither Ray nor torch; no container's check may import them but that of Ray's head."""
    program = """
import sys
sys.modules.update(dict.fromkeys(("ray", "torch", "transformers", "vllm", "kubernetes", "aiohttp", "huggingface_hub", "jinja2")))
from longboat_runtime.doctor.command import findings
from longboat_runtime.doctor.place import Place
print(*(f"{finding.check}: {finding.text}" for finding in findings(Place("graders", pod="pod"))), sep="\\n")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Ray head: nothing in this container uses Ray" in done.stdout


def test_a_directory_is_probed_by_writing_and_left_as_it_was(tmp_path: Path) -> None:
    probe = probed(Directory(tmp_path, "tests"))
    assert probe.step is None
    assert probe.speed > 0
    assert 0 < probe.free <= probe.size
    assert not [*tmp_path.iterdir()]
    assert (probed(Directory(tmp_path / "absent", "tests"))).error == errno.ENOENT


def test_storage_that_does_not_respond_is_not_waited_for(tmp_path: Path) -> None:
    assert probed(Directory(tmp_path, "tests"), seconds=0.0).silent


def test_a_read_only_directory_is_found() -> None:
    """Nobody, root included, makes directories in /proc."""
    probe = probed(Directory(Path("/proc"), "tests"))
    assert probe.step == "making a directory"


class NvmlError(Exception):
    """As pynvml's: with the library's return value."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class FabricInfo(ctypes.Structure):
    """The part of NVML's structure that is read."""

    _fields_ = [("state", ctypes.c_ubyte)]


def stand_in(*, error: int | None = None, fabric: int | None = 3, nvlinks: bool = True) -> SimpleNamespace:
    """A module like pynvml with two GPUs, or with an error when it is initialized."""

    def initialize() -> None:
        if error is not None:
            raise NvmlError(error)

    def fabric_info(handle: int, pointer: Any) -> None:
        if fabric is None:
            raise NvmlError(3)
        pointer._obj.state = fabric

    return SimpleNamespace(
        NVMLError=NvmlError,
        NVML_ERROR_LIBRARY_NOT_FOUND=12,
        c_nvmlGpuFabricInfo_t=FabricInfo,
        nvmlInit=initialize,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: "580.65.06",
        nvmlSystemGetCudaDriverVersion_v2=lambda: 13020,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: "NVIDIA H100",
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=80 * 2**30),
        nvmlDeviceGetCudaComputeCapability=lambda handle: (9, 0),
        nvmlDeviceGetGpuFabricInfo=fabric_info,
        nvmlDeviceGetP2PStatus=lambda first, second, index: 0 if index == 0 or nvlinks else 5,
    )


def test_gpus_are_described_by_nvml() -> None:
    gpus = gpus_by(stand_in(), Gpus(torch_cuda=(13, 0), files=2))
    assert (gpus.driver, gpus.cuda, gpus.torch_cuda, gpus.files) == ("580.65.06", (13, 2), (13, 0), 2)
    assert gpus.links == {(0, 1): "NVLink"}
    assert [asdict(device) for device in gpus.devices] == [
        {"name": "NVIDIA H100", "memory": 80 * 2**30, "capability": (9, 0), "fabric": None}
    ] * 2
    assert gpus_by(stand_in(nvlinks=False), Gpus()).links == {(0, 1): "PCIe"}
    assert gpus_by(stand_in(fabric=2), Gpus()).devices[0].fabric == "in progress"
    assert gpus_by(stand_in(fabric=None), Gpus()).devices[0].fabric is None


def test_an_absent_nvml_is_no_problem_by_itself_and_a_failing_one_is() -> None:
    assert gpus_by(stand_in(error=12), Gpus()) == Gpus()
    assert gpus_by(stand_in(error=18), Gpus()).problem == "NVML error 18"


def test_a_head_that_cannot_be_reached_is_told_apart() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # nobody listens
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        assert asyncio.run(reach(Place("trainer", address, 1, "pod"))) == Reached(refused=True)
    assert asyncio.run(reach(Place("trainer", "head.invalid:6379", 1, "pod"))).unresolved
    assert asyncio.run(reach(Place("graders", pod="pod"))) is None


def test_what_ldd_does_not_find_is_read_from_what_it_prints() -> None:
    printed = """
    linux-vdso.so.1 (0x00007ffd)
    libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)
    libcuda.so.1 => not found
/x.so: /lib/x86_64-linux-gnu/libm.so.6: version `GLIBC_2.38' not found (required by /x.so)
"""
    assert libraries.absent(printed) == ["libcuda.so.1", "GLIBC_2.38"]


def test_only_what_neither_driver_nor_package_brings_is_lacking() -> None:
    facts = libraries.Linked(
        4,
        {
            "lib/site-packages/vllm/_C.abi3.so": ["libcuda.so.1", "libtorch.so", "libnuma.so.1"],
            "lib/site-packages/nvidia/nvshmem/lib/nvshmem_transport_ucx.so.3": ["libucp.so.0"],
            "torchcodec/libtorchcodec_core4.so": ["libavutil.so.56"],
        },
        {"libtorch.so"},
    )
    assert libraries.lacking(facts) == {"lib/site-packages/vllm/_C.abi3.so": ["libnuma.so.1"]}
    finding = libraries.judge_libraries(facts)
    assert (finding.verdict, finding.text) == (Verdict.WRONG, "lib/site-packages/vllm/_C.abi3.so lacks libnuma.so.1")
    assert libraries.judge_libraries(libraries.Linked(0)).verdict is Verdict.WRONG


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")
def test_an_extension_whose_library_is_gone_is_found_and_one_that_a_package_brings_is_not(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for name in ("a", "b"):
        (site / name).mkdir(parents=True)
    needed, extension = site / "b/libneeded.so.1", site / "a/extension.so"
    gcc = ["gcc", "-shared", "-x", "c", "/dev/null", "-x", "none", "-o"]
    subprocess.run([*gcc, str(needed), "-Wl,-soname,libneeded.so.1"], check=True)
    subprocess.run([*gcc, str(extension), "-Wl,--no-as-needed", str(needed)], check=True)
    done = subprocess.run([*DOCTOR, "--libraries", str(site)], capture_output=True, text=True, check=False)
    assert (done.returncode, "2 extensions find all" in done.stdout) == (0, True), done.stdout + done.stderr
    needed.unlink()
    done = subprocess.run([*DOCTOR, "--libraries", str(site)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "a/extension.so lacks libneeded.so.1" in done.stdout
    assert "cure: install" in done.stdout


@pytest.mark.extended
def test_every_extension_that_is_installed_here_finds_its_libraries() -> None:
    finding = libraries.judge_libraries(libraries.linked(Path(sysconfig.get_path("purelib"))))
    assert finding.verdict is Verdict.OK, finding.text
