"""A cluster's namespaces (process, mount, network) and the processes in them."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import cgroups
from e2e.cluster.errors import ClusterError
from e2e.cluster.paths import HIDDEN
from e2e.cluster.process import command_line

INIT = Path(__file__).with_name("init.py")
# A process joins its control groups before it becomes the program. The environment is empty but for PATH:
# a proxy or a certificate setting of the caller must not reach the components.
JOIN = 'for file in $GROUPS_TO_JOIN; do echo 0 > "$file"; done; exec env -i PATH="$PATH" "$@"'


@dataclass(frozen=True)
class Namespaces:
    """The namespaces held by process `pid` (as the host counts), which is process 1 inside."""

    pid: int

    def alive(self) -> bool:
        """Whether process 1 still runs, from whichever checkout; a process id used again by another program doesn't count."""
        return any(Path(word).parts[-3:] == INIT.parts[-3:] for word in command_line(self.pid))

    def spawn(self, argv: list[str], log: Path, group: str) -> None:
        """Starts a program inside, in a control group, with its output appended to a log file."""
        enter = ["nsenter", "--target", str(self.pid), "--mount", "--pid", "--net", "--", "setsid", "--fork"]
        with log.open("ab") as output:
            # nsenter stays outside as a process of its own until setsid has forked, then it ends.
            done = subprocess.run(
                ["sh", "-ec", JOIN, "sh", *enter, *argv],
                env=_environment(group),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=False,
            )
        if done.returncode != 0:
            raise ClusterError(f"`{argv[0]}` could not be started in the cluster; see {log}")


def start(log: Path, group: str) -> Namespaces:
    """Creates new namespaces, held by a process that outlives the caller."""
    hidden = [str(folder) for folder in HIDDEN if folder.is_dir() and not folder.is_symlink()]
    isolate = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"]
    argv = ["setsid", "--fork", *isolate, sys.executable, "-I", "-S", str(INIT), *hidden]
    with log.open("ab") as errors:
        launch = subprocess.Popen(
            ["sh", "-ec", JOIN, "sh", *argv],
            env=_environment(group),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    if launch.stdout is None:
        raise ClusterError("the namespaces' first process has no output")
    with launch.stdout as output:
        line = output.readline().strip()
    launch.wait()
    if not line:
        raise ClusterError(f"the cluster's namespaces could not be made: {log.read_text().strip()[-2000:]}")
    return Namespaces(int(line))


def _environment(group: str) -> dict[str, str]:
    files = " ".join(str(file) for file in cgroups.process_files(group))
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "GROUPS_TO_JOIN": files}
