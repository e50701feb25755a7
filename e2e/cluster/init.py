"""Process 1 of a cluster's namespaces: sets up the mounts, says its process id, then only reaps what ends.

Run as a script by `namespaces.start`, with the folders to hide as arguments. It is killed to end the cluster:
the kernel then kills every process of the process namespace, and mounts and network go with the last one.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path


def main(hidden: list[str]) -> None:
    """Sets up the namespaces as their first process, prints its process id as the host sees it, and never returns."""
    pid = Path("/proc/self").readlink()  # /proc is still the host's, so this is the process id as the host sees it
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "--make-rshared", "/"], check=True)
    subprocess.run(["mount", "-t", "proc", "proc", "/proc"], check=True)
    for folder in hidden:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
    # The kernel reaps the children of a process that ignores SIGCHLD.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print(pid, flush=True)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    while True:
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1:])
