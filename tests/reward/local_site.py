"""Graders of a run without Kubernetes in a control group of their own, as root or as an ordinary user, and responses that multiply."""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from longboat_graders.local import Boundary
from tests.support.waiting import eventually

# What hostile responses have for themselves if nothing else stops them: the whole machine, but for what this test needs.
MOST_PROCESSES = 4000
USER = 54_321
MULTIPLYING = {
    "forks": "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
    "forks that their parents leave": "import os\nwhile True:\n  try:\n    if os.fork() == 0 and os.fork(): os._exit(0)\n  except OSError: pass",
    "forks that sleep": "import os, time\nfor _ in range(12): os.fork()\ntime.sleep(1e6)",
    "busy threads": "import threading\ndef spin():\n  while True: pass\nwhile True:\n  try: threading.Thread(target=spin).start()\n  except RuntimeError: pass",
    "a shell": "import subprocess\nsubprocess.run(['sh', '-c', 'f() { f | f & }; f; sleep 1000000'])",
    "programs": "import subprocess\nwhile True:\n  try: subprocess.Popen(['sleep', '1000000'])\n  except OSError: pass",
}
CASES = {"input_output": json.dumps({"inputs": ["3"], "outputs": ["9"]})}
REWARDS = {
    "function": ("score = 0.5", 0.5),
    "program": ("print(int(input()) ** 2)", 1.0),
}


@contextmanager
def control_group() -> Iterator[Path]:
    """A control group for at most MOST_PROCESSES, which is gone after the block with all that is in it."""
    root = next(path for path in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")) if path.is_dir())
    folder = Path(tempfile.mkdtemp(prefix="longboat-local-graders-", dir=root))
    if not (folder / "pids.max").exists():
        folder.rmdir()
        pytest.skip("no control group counts processes here")
    (folder / "pids.max").write_text(str(MOST_PROCESSES))
    try:
        yield folder
    finally:
        for pid in processes(folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: processes(folder), lambda left: not left)
        folder.rmdir()


def processes(group: Path) -> list[int]:
    return [int(line) for line in (group / "cgroup.procs").read_text().split()]


def start(group: Path, directory: Path, *, user: int = 0, boundary: Boundary | None = None) -> subprocess.Popen[bytes]:
    """Starts local graders in the group, as this process or as another user, within what the kernel allows or within a `boundary`."""
    code = "import sys; from pathlib import Path; from longboat_graders import local, server\n"
    if boundary is not None:
        code += f"local.choose = lambda: local.Boundary({boundary.namespaces}, {boundary.user})\n"
    code += f"sys.exit(server.serve_locally(Path('{directory}/graders.sock'), 2, Path('{directory}'), {os.getpid()}))"
    steps = [f"echo $$ > {group}/cgroup.procs"]
    command = [sys.executable, "-c", code]
    if user:
        os.chown(directory, user, user)
        command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--bounding-set=-all", *command]
        steps += home_that_may_be_passed_through(directory)
    script = " && ".join([*steps, f"exec {shlex.join(command)}"])
    environment = {**os.environ, "TMPDIR": str(directory)}
    return subprocess.Popen(["unshare", "--mount", "sh", "-c", script], env=environment)


def home_that_may_be_passed_through(directory: Path) -> list[str]:
    """Commands that let other users get at this machine's Python, which may be installed in root's home, in a mount namespace."""
    python, home = Path(sys.base_prefix).resolve(), Path.home()
    if not python.is_relative_to(home):
        return []
    instead = directory / "home"
    return [
        f"mkdir -p {instead / python.relative_to(home)}",
        f"mount --bind {python} {instead / python.relative_to(home)}",
        f"mount --rbind {instead} {home}",
    ]
