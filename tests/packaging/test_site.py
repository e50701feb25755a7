"""The documentation's site is built without a warning: no link between pages, to a heading or to a file leads nowhere."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_every_link_leads_somewhere(tmp_path: Path) -> None:
    options = ["--quiet", "--fail-on-warning", "--keep-going", "--conf-dir", "docs"]
    command = [sys.executable, "-m", "sphinx", *options, "--builder", "dummy", ".", str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
