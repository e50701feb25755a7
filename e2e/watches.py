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
def following(cluster: Cluster, path: str, tell: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Tells of each event of a watch, in the order of the API server's writes, until the end of the block.

    All that was written before the end of the block has been told of then. `path` ends in a query. A watch that breaks is resumed
    where it was. What `tell` raises is raised at the end.
    """
    watch = _Watch(cluster, path, tell)
    with ThreadPoolExecutor(1) as pool:
        follows = pool.submit(watch.follow)
        try:
            yield
            listed = cluster.api.get(path) or {}
            eventually(lambda: follows.done() or watch.has_told(listed))
        finally:
            watch.over.set()
        follows.result()


class _Watch:
    """A watch, and the newest version of each object that it has told of, by uid; versions of all objects ascend."""

    def __init__(self, cluster: Cluster, path: str, tell: Callable[[dict[str, Any]], None]) -> None:
        self.over = Event()
        self._cluster, self._path, self._tell = cluster, path, tell
        self._versions: dict[str, int] = {}
        self._deleted: set[str] = set()

    def follow(self) -> None:
        """Tells of events until `over`."""
        version = ""
        while not self.over.is_set():
            argv = [str(KUBEBOX.path), "kubectl", "get", "--raw", f"{self._path}&watch=1&resourceVersion={version}"]
            with subprocess.Popen(argv, env=self._cluster.environment, stdout=subprocess.PIPE, text=True) as watch:
                Thread(target=self._end, args=(watch,), daemon=True).start()
                for line in watch.stdout or ():
                    if line.endswith("\n"):  # else it was cut off
                        event = json.loads(line)
                        assert event["type"] in {"ADDED", "MODIFIED", "DELETED"}, event
                        version = event["object"]["metadata"]["resourceVersion"]
                        self._see(event)

    def has_told(self, listed: dict[str, Any]) -> bool:
        """Whether it has told of all that happened before a list of the same objects was made."""
        versions = {item["metadata"]["uid"]: int(item["metadata"]["resourceVersion"]) for item in listed["items"]}
        known = dict(self._versions)
        gone = [
            uid for uid in known.keys() - versions.keys() if known[uid] <= int(listed["metadata"]["resourceVersion"])
        ]
        return self._deleted >= set(gone) and all(known.get(uid, -1) >= version for uid, version in versions.items())

    def _see(self, event: dict[str, Any]) -> None:
        self._tell(event)
        metadata = event["object"]["metadata"]
        self._versions[metadata["uid"]] = int(metadata["resourceVersion"])
        if event["type"] == "DELETED":
            self._deleted.add(metadata["uid"])

    def _end(self, watch: "subprocess.Popen[str]") -> None:
        self.over.wait()
        watch.kill()
