"""RLJobs at the API server, as any client has them; a refusal comes with the server's own field paths."""

import http.client
import json
import re
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from e2e import installation
from e2e.cluster.cluster import Cluster
from e2e.cluster.errors import CommandError
from longboat_operator.pods.names import JobRef
from tests.support.waiting import DEADLINE_SECONDS, eventually

REPOSITORY = Path(__file__).parents[3]
NAMESPACE = "api"
OPERATOR = f"system:serviceaccount:{installation.NAMESPACE}:{installation.RELEASE}"
STARTED = "2026-01-01T00:00:00Z"

NewJob = Callable[..., str]
"""Creates a job from changes to the minimal one, a status and a name (all may be left out); returns the name."""

GROUP, VERSION = "longboat.dev", "v1alpha1"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


class Refused(Exception):
    """Carries the server's refusal: HTTP status, message, and the fields it names."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__(answer["message"])
        self.status: int = answer["code"]
        self.message: str = answer["message"]
        causes = answer.get("details", {}).get("causes", [])
        # "<nil>" means that some rules were not checked because of the other faults.
        self.fields: list[str] = [cause["field"] for cause in causes if cause.get("field", "<nil>") != "<nil>"]


@dataclass(frozen=True)
class Jobs:
    """RLJobs of a namespace as an account sees them: a service account by its token, without one the administrator."""

    cluster: Cluster
    namespace: str
    token: str | None = None

    def create(self, body: dict[str, Any], dry_run: bool = False) -> dict[str, Any]:
        """Creates the object with strict field validation, or with `dry_run` only checks that it could. Raises Refused if not."""
        query = [("fieldValidation", "Strict"), *([("dryRun", "All")] if dry_run else [])]
        return self._call("POST", "", body, query)

    def get(self, name: str) -> dict[str, Any]:
        """Reads the object."""
        return self._call("GET", f"/{name}")

    def reference(self, name: str) -> JobRef:
        """Returns the job as the operator refers to it."""
        return JobRef(self.namespace, name, self.get(name)["metadata"]["uid"])

    def delete(self, name: str) -> None:
        """Deletes the object, which has no finalizers and so is gone at once."""
        self._call("DELETE", f"/{name}")

    def merge(self, name: str, body: dict[str, Any], subresource: str = "") -> dict[str, Any]:
        """Applies a merge patch; null removes a field."""
        return self._call("PATCH", _below(name, subresource), body, content_type=MERGE)

    def apply_status(self, name: str, manager: str, status: dict[str, Any]) -> dict[str, Any]:
        """Applies a status, server-side and forced."""
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "RLJob", "metadata": {"name": name}, "status": status}
        query = [("fieldManager", manager), ("force", "true")]
        return self._call("PATCH", f"/{name}/status", body, query, APPLY)

    def _call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        query: list[tuple[str, str]] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        place = f"/apis/{GROUP}/{VERSION}/namespaces/{self.namespace}/rljobs{path}?{urlencode(query or [])}"
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        pki = self.cluster.layout.pki
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        if self.token is None:
            context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        else:
            headers["Authorization"] = f"Bearer {self.token}"
        connection = http.client.HTTPSConnection(
            self.cluster.network.node, 6443, timeout=DEADLINE_SECONDS, context=context
        )
        try:
            connection.request(method, place, None if body is None else json.dumps(body), headers)
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        if answer["kind"] == "Status" and answer["status"] == "Failure":
            raise Refused(answer)
        return answer


def _below(name: str, subresource: str) -> str:
    return f"/{name}/{subresource}" if subresource else f"/{name}"


def listed(objects: Sequence[Any]) -> dict[str, Any]:
    """Makes one object, a List, of several."""
    return {"apiVersion": "v1", "kind": "List", "items": list(objects)}


def may(cluster: Cluster, account: str, *action: str) -> bool:
    """Returns whether an account may do this."""
    try:
        cluster.kubectl("auth", "can-i", "-q", f"--as={account}", *action)
    except CommandError:
        return False
    return True


def once_known(call: Callable[[], Any]) -> Any:
    """Repeats a call until the server knows the caller's account and rights: they take effect a moment after they are created."""

    def answered() -> Any:
        try:
            return call()
        except Refused as refused:
            unknown = refused.status == HTTPStatus.UNAUTHORIZED
            if not unknown and not re.search("cannot (get|patch) resource", refused.message):
                raise
            return refused

    return eventually(answered, lambda answer: not isinstance(answer, Refused))
