"""A server in memory that speaks as much of Weights & Biases' protocol as its client needs here: GraphQL and the stream of files."""

from __future__ import annotations

import gzip
import json
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.tracking.local_server import JsonHandler, LocalServer


class Server(LocalServer):
    """Serves until `close`. `rows` are the lines of each run's history, `configs` what was last said of its config."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.configs: dict[str, dict[str, Any]] = {}
        self.files: dict[str, bytes] = {}
        super().__init__(_Handler)

    def asked(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        if "query RunResumeStatus" in query:
            return {"model": self._project(variables) | {"bucket": self._resumed(variables["name"])}}
        if "mutation UpsertBucket" in query:
            name = variables["name"]
            self.rows.setdefault(name, [])
            self.configs[name] = json.loads(variables.get("config") or "null") or self.configs.get(name, {})
            bucket = self._bucket(name) | {"project": self._project(variables)}
            return {"upsertBucket": {"bucket": bucket, "inserted": not self.rows[name]}}
        if "mutation CreateRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.url}/uploads/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}}
        return {}

    def stream(self, run: str, files: dict[str, Any]) -> None:
        """Lines at an offset replace what was there."""
        if history := files.get("wandb-history.jsonl"):
            rows = self.rows[run]
            rows[history["offset"] :] = [json.loads(line) for line in history["content"]]

    def _resumed(self, name: str) -> dict[str, Any] | None:
        if not (rows := self.rows.get(name)):
            return None
        tail = json.dumps([json.dumps(rows[-1])])
        counts = {"historyLineCount": len(rows), "eventsLineCount": 0, "logLineCount": 0}
        rest = {
            "summaryMetrics": "{}",
            "historyTail": tail,
            "eventsTail": "[]",
            "config": "{}",
            "tags": [],
            "wandbConfig": '{"t": 1}',
        }
        return self._bucket(name) | counts | rest

    def _bucket(self, name: str) -> dict[str, Any]:
        return {"id": name, "name": name, "displayName": name, "sweepName": None, "config": "{}", "description": ""}

    def _project(self, variables: dict[str, Any]) -> dict[str, Any]:
        return {"id": "1", "name": variables["project"], "entity": {"id": "1", "name": variables["entity"] or "me"}}


class _Handler(JsonHandler, BaseHTTPRequestHandler):
    server_of: Server

    def do_PUT(self) -> None:
        self.server_of.files[self.path.partition("/uploads/")[2]] = self._body()
        self.send({})

    def do_POST(self) -> None:
        body = self._body()
        if self.path == "/graphql":
            asked = json.loads(body)
            self.send({"data": self.server_of.asked(asked["query"], asked.get("variables") or {})})
        elif self.path.endswith("/file_stream"):
            self.server_of.stream(self.path.split("/")[-2], json.loads(body).get("files") or {})
            self.send({})
        else:
            self.send({})

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        return gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
