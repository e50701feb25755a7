"""A minimal client that reads from the API server."""

import http.client
import json
import ssl
import time
from typing import Any

from e2e.cluster.network import Network
from e2e.cluster.pki import Pair

# How long a server that doesn't answer is asked again, in seconds.
PATIENCE = 600.0


class Api:
    """GET requests with a client certificate."""

    def __init__(self, network: Network, authority: Pair, user: Pair) -> None:
        """Trusts the authority and acts as the user."""
        self._host = network.node
        self._context = ssl.create_default_context(cafile=str(authority.certificate))
        self._context.load_cert_chain(user.certificate, user.key)

    def serves(self, path: str = "/readyz") -> bool:
        """Whether the path answers 200; False too while nobody listens."""
        try:
            return self._request(path)[0] == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False

    def get(self, path: str) -> Any | None:
        """Reads the object at a path, None when there is none; raises RuntimeError on any other status.

        A server that doesn't answer, or says that it can't now, is asked again for PATIENCE. Raises OSError or HTTPException if it
        still doesn't answer then.
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                status, body = self._request(path)
            except (OSError, http.client.HTTPException):
                if time.monotonic() > deadline:
                    raise
            else:
                later = status == http.HTTPStatus.TOO_MANY_REQUESTS or status >= http.HTTPStatus.INTERNAL_SERVER_ERROR
                if not later or time.monotonic() > deadline:
                    break
            time.sleep(1)
        if status == http.HTTPStatus.NOT_FOUND:
            return None
        if status != http.HTTPStatus.OK:
            raise RuntimeError(f"GET {path}: {status} {body[:500]}")
        return json.loads(body)

    def _request(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPSConnection(self._host, 6443, timeout=30, context=self._context)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()
