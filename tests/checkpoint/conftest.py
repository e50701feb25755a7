import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def small_volume(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own that holds 1 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    volume = tmp_path / "volume"
    volume.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", volume], check=True)
    try:
        yield volume
    finally:
        subprocess.run(["umount", volume], check=True)
