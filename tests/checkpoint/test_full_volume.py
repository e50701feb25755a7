"""A volume that really is full: a small tmpfs in a mount namespace that goes with the process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")

# Four mebibytes of tensors.
WRITE = """
import errno, sys
from pathlib import Path
import torch
import torch.distributed as dist
from longboat_runtime.checkpoint import sharded
from longboat_runtime.checkpoint.export import export
volume = Path(sys.argv[1])
tensors = {f"weight{number}": torch.ones(64, 1024) for number in range(16)}
try:
    if sys.argv[2] == "export":
        try:
            export(volume, tensors.items(), "float32", volume / "export", volume / ".export.1.partial")
        finally:
            assert not (volume / ".export.1.partial").exists()
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        sharded.write(tensors, volume / "trainer")
except OSError as error:
    print(errno.errorcode[error.errno])
else:
    print("written")
"""


def outcome(volume: Path, size: str, written: str) -> str:
    """Of writing a checkpoint or an export onto a volume of this size: the error's name, or `written`."""
    script = f'mount -t tmpfs -o size={size} tmpfs "$0" && exec "$@"'
    command = [sys.executable, "-c", WRITE, str(volume), written]
    shell = ["unshare", "--mount", "sh", "-ec", script, str(volume)]
    return subprocess.run([*shell, *command], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    ("size", "result"),
    [
        ("1m", "ENOSPC"),
        pytest.param("3900k", "ENOSPC", marks=pytest.mark.extended),
        pytest.param("16m", "written", marks=pytest.mark.extended),
    ],
)
def test_no_space_is_told_as_such(tmp_path: Path, size: str, result: str) -> None:
    """torch's own error says only that its archive has an unexpected position."""
    assert outcome(tmp_path, size, "checkpoint") == result


def test_no_space_for_an_export_is_told_as_such(tmp_path: Path) -> None:
    """The error of safetensors is no OSError."""
    assert outcome(tmp_path, "1m", "export") == "ENOSPC"
