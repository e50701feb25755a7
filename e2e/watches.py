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
from tests.support.waiting import eventually


@contextmanager
def following(cluster: Cluster, path: str, on_event: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Calls `on_event` with each event of a watch, in the order of the API server's writes, until the end of the block.

    Objects that exist at the start come first, as added. The block ends only after the last event that was written in it. `path` must have
    a query. A watch that breaks is resumed where it stopped. Errors of `on_event` are raised at the end.
    """
    watch = _Watch(cluster, path, on_event)
    with ThreadPoolExecutor(1) as pool:
        follows = pool.submit(watch.follow)
        try:
            yield
            eventually(lambda: follows.done() or watch.versions == _versions(cluster.api.get(path) or {}))
        finally:
            watch.over.set()
        follows.result()


class _Watch:
    """Follows a watch, and keeps by uid the newest version that it has reported of each object, until that is deleted."""

    def __init__(self, cluster: Cluster, path: str, on_event: Callable[[dict[str, Any]], None]) -> None:
        self.over = Event()
        self._cluster, self._path, self._on_event = cluster, path, on_event
        self.versions: dict[str, str] = {}

    def follow(self) -> None:
        """Reports events until `over` is set."""
        version = ""
        while not self.over.is_set():
            argv = [str(KUBEBOX.path), "kubectl", "get", "--raw", f"{self._path}&watch=1&resourceVersion={version}"]
            with subprocess.Popen(argv, env=self._cluster.environment, stdout=subprocess.PIPE, text=True) as watch:
                Thread(target=self._end, args=(watch,), daemon=True).start()
                for line in watch.stdout or ():
                    if line.endswith("\n"):  # otherwise it was cut off
                        event = json.loads(line)
                        assert event["type"] in {"ADDED", "MODIFIED", "DELETED"}, event
                        version = event["object"]["metadata"]["resourceVersion"]
                        self._see(event)

    def _see(self, event: dict[str, Any]) -> None:
        self._on_event(event)
        metadata = event["object"]["metadata"]
        self.versions[metadata["uid"]] = metadata["resourceVersion"]
        if event["type"] == "DELETED":
            del self.versions[metadata["uid"]]

    def _end(self, watch: "subprocess.Popen[str]") -> None:
        self.over.wait()
        watch.kill()


def _versions(listed: dict[str, Any]) -> dict[str, str]:
    """Returns the version of each object in a list, by uid."""
    return {item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in listed["items"]}
