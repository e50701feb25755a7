"""A volume that really is full: a small tmpfs in a mount namespace that goes with the process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SAVE = """
import errno, sys
from pathlib import Path
import torch
import torch.distributed as dist
from longboat_runtime.checkpoint import sharded
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
tensors = {f"weight{number}": torch.ones(64, 1024) for number in range(16)}
try:
    sharded.write(tensors, Path(sys.argv[1]) / "trainer")
except OSError as error:
    print(errno.errorcode[error.errno])
else:
    print("written")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
@pytest.mark.parametrize(
    ("size", "result"),
    [
        ("1m", "ENOSPC"),
        pytest.param("3900k", "ENOSPC", marks=pytest.mark.extended),
        pytest.param("16m", "written", marks=pytest.mark.extended),
    ],
)
def test_no_space_is_told_as_such(tmp_path: Path, size: str, result: str) -> None:
    """Four mebibytes of tensors. torch's own error says only that its archive has an unexpected position."""
    script = f'mount -t tmpfs -o size={size} tmpfs "$0" && exec "$@"'
    command = [sys.executable, "-c", SAVE, str(tmp_path)]
    shell = ["unshare", "--mount", "sh", "-ec", script, str(tmp_path)]
    done = subprocess.run([*shell, *command], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [result]
