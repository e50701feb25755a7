"""A server on loopback that answers in JSON, for what trackers' clients ask of theirs."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class LocalServer:
    """Serves by `handler` until `close`; the handler's `server_of` is this."""

    def __init__(self, handler: type[JsonHandler], port: int = 0) -> None:
        self._http = ThreadingHTTPServer(("127.0.0.1", port), type("Handler", (handler,), {"server_of": self}))
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class JsonHandler(BaseHTTPRequestHandler):
    server_of: Any

    def send(self, content: dict[str, Any], status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None: ...
