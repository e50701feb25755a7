"""RLJobs as a person handles them: apply, look, wait, and on trouble show everything that explains it."""

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any, TypeVar
from urllib.parse import quote

from e2e.cluster.binaries import KUBEBOX
from e2e.cluster.cluster import Cluster
from e2e.cluster.errors import CommandError
from e2e.host_runtime import ENVIRONMENT
from e2e.volumes import apply
from tests.support.waiting import DEADLINE_SECONDS, NeverHappenedError, eventually

Object = dict[str, Any]
T = TypeVar("T")


class JobFailedError(AssertionError):
    """The job failed while something else was waited for; the message holds what the cluster says of it."""


@dataclass(frozen=True)
class Job:
    """One RLJob of a namespace. What is asked many times goes to the API server directly: kubectl takes 0.2 s of a CPU."""

    cluster: Cluster
    namespace: str
    name: str

    def apply(self, spec: Object) -> None:
        """Creates or changes the job."""
        apply(
            self.cluster,
            [
                {
                    "apiVersion": "longboat.dev/v1alpha1",
                    "kind": "RLJob",
                    "metadata": {"name": self.name, "namespace": self.namespace},
                    "spec": spec,
                }
            ],
        )

    def get(self) -> Object:
        """Reads the object as it stands; empty when there is none."""
        return self.cluster.api.get(f"/apis/longboat.dev/v1alpha1/namespaces/{self.namespace}/rljobs/{self.name}") or {}

    def status(self) -> Object:
        """Reads the job's status; empty while it has none, or if there is no such job."""
        status: Object = self.get().get("status", {})
        return status

    def patch(self, spec: Object) -> None:
        """Merges `spec` into the job's."""
        self._kubectl("patch", "rljob", self.name, "--type", "merge", "-p", json.dumps({"spec": spec}))

    def delete(self) -> None:
        """Deletes the job, if there is one, and waits until it is gone."""
        self._kubectl("delete", "rljob", self.name, "--ignore-not-found", f"--timeout={DEADLINE_SECONDS:.0f}s")

    def step(self) -> int:
        """Returns the number of committed optimizer steps, by the job's status."""
        return int(self.status().get("training", {}).get("step", 0))

    def condition(self, kind: str) -> Object:
        """Returns the condition of this type; empty when there is none."""
        return next((c for c in self.status().get("conditions", []) if c["type"] == kind), {})

    def pods(self) -> dict[str, Object]:
        """Returns the job's pods by name."""
        selector = quote(f"longboat.dev/job={self.name}")
        listed = self.cluster.api.get(f"/api/v1/namespaces/{self.namespace}/pods?labelSelector={selector}") or {}
        return {pod["metadata"]["name"]: pod for pod in listed.get("items", [])}

    def pod_uids(self, *roles: str) -> dict[str, str]:
        """Returns the uids of the pods of some roles (default all), by pod name."""
        pods = self.pods().items()
        return {
            n: p["metadata"]["uid"]
            for n, p in pods
            if not roles or p["metadata"]["labels"]["longboat.dev/role"] in roles
        }

    def pod(self, role: str) -> str:
        """Returns the name of the newest pod, by attempt, of a role with one replica; raises ValueError if there is none."""
        names = [n for n, p in self.pods().items() if p["metadata"]["labels"]["longboat.dev/role"] == role]
        return max(names, key=lambda n: int(n.rsplit("-a", 1)[1]))

    def exec(self, pod: str, container: str, *command: str) -> str:
        """Runs a command in a container and returns its output; raises CommandError if it fails."""
        return self._kubectl("exec", pod, "-c", container, "--", *command)

    def processes(self, pod: str, container: str) -> str:
        """Returns the command lines of all processes of a container in one text, those of this look included."""
        return self.exec(pod, container, "sh", "-c", r"cat /proc/[0-9]*/cmdline 2> /dev/null | tr '\0' ' '")

    def printed(self, pod: str, container: str, what: str) -> re.Match[str]:
        """Waits until a container has printed a line that matches this regular expression, and returns the first match at once."""
        argv = [str(KUBEBOX.path), "kubectl", "-n", self.namespace, "logs", "-f", pod, "-c", container]
        last = ""
        with subprocess.Popen(argv, env=self.cluster.environment, stdout=subprocess.PIPE, text=True) as following:
            end = Timer(DEADLINE_SECONDS, following.kill)
            end.start()
            try:
                for last in following.stdout or ():
                    if match := re.search(what, last):
                        return match
            finally:
                end.cancel()
                following.kill()
        raise NeverHappenedError(f"{pod} has not printed {what!r}; its last line: {last!r}\n{self.describe()}")

    def samples(self, folder: Path) -> list[Object]:
        """Returns the samples of all files, as `longboat samples` shows them to a person, whose kubectl is made in `folder`."""
        kubectl = folder / "kubectl"
        kubectl.write_text(f'#!/bin/sh\nexec "{KUBEBOX.path}" kubectl "$@"\n')
        kubectl.chmod(0o755)
        environment = self.cluster.environment | {"PATH": f"{folder}:{os.environ['PATH']}"}
        command = [str(ENVIRONMENT / "bin" / "longboat"), "samples", self.name, "-n", self.namespace]
        command += ["--json", "--step", "all"]
        shown = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        return [json.loads(line) for line in shown.splitlines()]

    def wait(self, what: str, look: Callable[[], T], right: Callable[[T], object] = bool) -> T:
        """Waits until `right` accepts what `look` returns, and returns that; gives up at once if the job fails meanwhile."""

        def unless_failed(value: T) -> object:
            accepted = right(value)
            if not accepted:
                self.require_not_failed(what)
            return accepted

        with self._explained(what):
            return eventually(look, unless_failed)

    def wait_for(self, condition: str) -> Object:
        """Waits until the condition of this type is True, and returns it."""
        return self.wait(f"condition {condition}", lambda: self.condition(condition), _is_true)

    def wait_for_failure(self) -> Object:
        """Waits until the job has failed, and returns the condition that says why."""
        with self._explained("the job fails"):
            return eventually(lambda: self.condition("Failed"), _is_true)

    def wait_for_step(self, step: int) -> int:
        """Waits until at least `step` optimizer steps are committed, and returns how many are."""
        return self.wait(f"step {step}", self.step, lambda committed: committed >= step)

    def has_succeeded(self) -> bool:
        """Returns whether the job has succeeded; raises JobFailedError if it has failed."""
        self.require_not_failed("condition Succeeded")
        return _is_true(self.condition("Succeeded"))

    def require_not_failed(self, awaited: str) -> None:
        """Raises JobFailedError if the job has failed; the message says what was `awaited` instead."""
        if _is_true(self.condition("Failed")):
            raise JobFailedError(f"{awaited}: the job failed meanwhile\n{self.describe()}")

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Adds what was waited for and what the cluster says of the job to the message of a wait that gives up."""
        try:
            yield
        except NeverHappenedError as error:
            raise NeverHappenedError(f"{what}: {error}\n{self.describe()}") from None

    def describe(self) -> str:
        """Collects what may explain why a job doesn't do what it should: its object, pods, events, and the ends of logs."""
        parts = [self._quiet("get", "rljob", self.name, "-o", "yaml")]
        parts.append(self._quiet("get", "pods", "-o", "wide"))
        parts.append(self._quiet("get", "events", "--sort-by=.lastTimestamp"))
        for name, pod in self.pods().items():
            containers = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
            for container in containers:
                log = self._quiet("logs", name, "-c", container["name"], "--tail=60")
                parts.append(f"--- log of {name}/{container['name']}\n{log}")
        operator = self.cluster.kubectl(
            "logs", "-n", "longboat-system", "-l", "app.kubernetes.io/name=longboat", "--tail=60"
        )
        return "\n".join([*parts, f"--- log of the operator\n{operator}"])

    def _kubectl(self, *argv: str) -> str:
        return self.cluster.kubectl("-n", self.namespace, *argv, timeout=None)

    def _quiet(self, *argv: str) -> str:
        try:
            return self._kubectl(*argv)
        except CommandError as error:
            return str(error)


def _is_true(condition: Object) -> bool:
    return bool(condition.get("status") == "True")
