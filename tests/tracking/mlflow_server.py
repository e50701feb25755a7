"""A tracking server in memory that speaks as much of MLflow's REST API as its client needs here."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from uuid import uuid4

from tests.tracking.local_server import JsonHandler, LocalServer


class Server(LocalServer):
    """Serves until `close`. `fail` is how many of the next batches are stored but answered with an error."""

    def __init__(self, port: int = 0) -> None:
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.artifacts: dict[str, bytes] = {}
        self.authorizations: set[str | None] = set()
        self.fail = 0
        super().__init__(_Handler, port)

    @property
    def only_run(self) -> dict[str, Any]:
        (run,) = self.runs.values()
        return run

    def points(self, metric: str) -> list[tuple[int, float]]:
        """All that was ever logged, in order."""
        return [(m["step"], m["value"]) for m in self.only_run["metrics"] if m["key"] == metric]

    def answer(self, path: str, asked: dict[str, Any]) -> dict[str, Any] | None:
        match path:
            case "experiments/get-by-name":
                number = self.experiments.get(asked["experiment_name"])
                return number and {"experiment": {"experiment_id": number, "name": asked["experiment_name"]}}
            case "experiments/create":
                number = self.experiments[asked["name"]] = str(len(self.experiments) + 1)
                return {"experiment_id": number}
            case "runs/create":
                name = uuid4().hex
                info = {"experiment_id": asked["experiment_id"], "run_name": asked["run_name"], "status": "RUNNING"}
                info |= {"run_id": name, "artifact_uri": f"mlflow-artifacts:/1/{name}/artifacts"}
                self.runs[name] = {"info": info, "tags": asked["tags"], "params": [], "metrics": []}
                return {"run": self.shown(name)}
            case "runs/search":
                tag = asked["filter"].rpartition("'")[0].rpartition("'")[2]
                found = [name for name, run in self.runs.items() if tag in [t["value"] for t in run["tags"]]]
                return {"runs": [self.shown(name) for name in found]}
            case "runs/get":
                return {"run": self.shown(asked["run_id"])}
            case "runs/update":
                self.runs[asked["run_id"]]["info"]["status"] = asked["status"]
                return {"run_info": self.runs[asked["run_id"]]["info"]}
            case "runs/set-tag":
                self.runs[asked["run_id"]]["tags"].append({"key": asked["key"], "value": asked["value"]})
                return {}
            case "runs/log-batch":
                run = self.runs[asked["run_id"]]
                known = {p["key"]: p["value"] for p in run["params"]}
                if any(known.get(p["key"], p["value"]) != p["value"] for p in asked.get("params", [])):
                    raise ValueError("a parameter can't be changed")
                run["params"] += asked.get("params", [])
                run["metrics"] += asked.get("metrics", [])
                return {}
        raise AssertionError(path)

    def shown(self, name: str) -> dict[str, Any]:
        run = self.runs[name]
        latest = {metric["key"]: metric for metric in sorted(run["metrics"], key=lambda m: m["step"])}
        return {
            "info": run["info"],
            "data": {"metrics": [*latest.values()], "params": run["params"], "tags": run["tags"]},
        }


class _Handler(JsonHandler, BaseHTTPRequestHandler):
    server_of: Server

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server_of.artifacts[self.path.partition("artifacts/")[2]] = body
        self.send({})

    def _serve(self) -> None:
        server, parts = self.server_of, urlsplit(self.path)
        server.authorizations.add(self.headers["Authorization"])
        length = int(self.headers["Content-Length"] or 0)
        asked = json.loads(self.rfile.read(length)) if length else dict(parse_qsl(parts.query))
        path = parts.path.partition("/mlflow/")[2]
        if "mlflow-artifacts" in parts.path:
            return self.send({"files": []})
        found = server.answer(path, asked)
        if found is None:
            return self.send({"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "there is none"}, 404)
        if server.fail and asked.get("metrics"):
            server.fail -= 1
            return self.send({"error_code": "INTERNAL_ERROR", "message": "stored, but not said so"}, 500)
        return self.send(found)
