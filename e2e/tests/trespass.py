"""Reports as JSON what code on a job's Ray head can see of the driver. Run in a pod of the job, with its Ray token.

    python trespass.py      {"user": 10003, "driver": {"12 longboat agent driver ...": {"/proc/12/root/...": "EACCES", ...}, ...}, ...}

Every path has the name of the error that reading it gave, or "read". `hidden` are those processes of the driver whose files in /proc
are root's, so that no process of the same user reads them either.
"""

import json
import sys
from typing import Any

DRIVER = 10001
API_TOKEN = "var/run/secrets/kubernetes.io/serviceaccount/token"


def look() -> dict[str, Any]:
    """Tries to read what belongs to processes of the driver's user, and the API token."""
    import errno
    import os
    from pathlib import Path

    def attempt(path: Path) -> str:
        try:
            if path.is_symlink():
                path.readlink()
            if path.is_dir():
                list(path.iterdir())
            else:
                with path.open("rb") as file:
                    file.read(1)
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        return "read"

    attempts: dict[str, dict[str, str]] = {}
    hidden: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            owner = (process / "environ").stat().st_uid
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(status["Uid"].split()[0]) == DRIVER:
            hidden += [command] if owner == 0 else []
            paths = [process / name for name in ("root", f"root/{API_TOKEN}", "cwd", "environ", "mem", "fd")]
            attempts[f"{process.name} {command}"] = {str(path): attempt(path) for path in paths}
    return {"user": os.getuid(), "driver": attempts, "hidden": hidden, "token": attempt(Path("/", API_TOKEN))}


def main() -> None:
    """Has a Ray task look around on the head."""
    import ray

    ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    (head,) = (node for node in ray.nodes() if node["Alive"] and "longboat-store" in node["Resources"])
    place = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(head["NodeID"], soft=False)
    task = ray.remote(look).options(num_cpus=0, scheduling_strategy=place)
    json.dump(ray.get(task.remote()), sys.stdout)


if __name__ == "__main__":
    main()
