"""Watches of the API server, event by event."""

import json
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

from e2e.cluster.binaries import KUBEBOX
from e2e.cluster.cluster import Cluster


@contextmanager
def following(cluster: Cluster, path: str, tell: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Tells of each event of a watch, in the order of the API server's writes, until the end of the block.

    A watch that breaks is taken up again where it was. What `tell` raises is raised at the end.
    """
    over = Event()
    with ThreadPoolExecutor(1) as pool:
        follows = pool.submit(_follow, cluster, path, tell, over)
        try:
            yield
        finally:
            over.set()
        follows.result()


def _follow(cluster: Cluster, path: str, tell: Callable[[dict[str, Any]], None], over: Event) -> None:
    version = ""
    while not over.is_set():
        argv = [str(KUBEBOX.path), "kubectl", "get", "--raw", f"{path}&resourceVersion={version}"]
        with subprocess.Popen(argv, env=cluster.environment, stdout=subprocess.PIPE, text=True) as watch:
            ending = Thread(target=_end, args=(watch, over), daemon=True)
            ending.start()
            for line in watch.stdout or ():
                if line.endswith("\n"):  # else it was cut off
                    event = json.loads(line)
                    assert event["type"] in {"ADDED", "MODIFIED", "DELETED"}, event
                    version = event["object"]["metadata"]["resourceVersion"]
                    tell(event)
        over.wait(0.2)


def _end(watch: "subprocess.Popen[str]", over: Event) -> None:
    over.wait()
    watch.kill()
