"""Run inside the GPU image: compiles what Triton and torch.compile have compiled when an engine starts.

There is neither a GPU nor its driver. An empty `libcuda.so.1` stands in for the one that NVIDIA's container toolkit mounts, so
Triton's C module is compiled, linked and imported, and a kernel is compiled for an H100; nothing is launched.
"""

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaUtils
from triton.compiler import ASTSource


@triton.jit
def add_one(x, y, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + at, tl.load(x + at, at < n) + 1, at < n)


def c_module(directory: str) -> str:
    """Builds Triton's module for CUDA and returns its path."""
    library = f"{directory}/libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-Wl,-soname,libcuda.so.1", "-x", "c", "/dev/null", "-o", library], check=True)
    os.environ["TRITON_LIBCUDA_PATH"] = directory
    ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    # Functions of the driver are looked up when they are called, which is never.
    sys.setdlopenflags(os.RTLD_LAZY)
    CudaUtils()
    (module,) = Path(triton.knobs.cache.dir).glob("*/cuda_utils*.so")
    return str(module)


def kernel() -> bytes:
    """Machine code of `add_one` for compute capability 9.0."""
    signature = {"x": "*fp32", "y": "*fp32", "n": "i32", "block": "constexpr"}
    source = ASTSource(add_one, signature, constexprs={"block": 128})
    machine_code: bytes = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]
    return machine_code


def cpp_library(directory: str) -> str:
    """Builds a C++ library as torch.compile does for what stays on the CPU."""
    library = f"{directory}/vector.so"
    code = b'#include <vector>\nextern "C" int count() { return std::vector<int>(3).size(); }\n'
    subprocess.run(["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", library], input=code, check=True)
    return library


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        made = {
            "user": os.getuid(),
            "module": c_module(directory),
            "kernel": len(kernel()),
            "cpp": ctypes.CDLL(cpp_library(directory)).count(),
        }
    print(json.dumps(made))
