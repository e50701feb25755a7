"""A run in MLflow, by its own client. It is found again by a tag, and resumed after the last step that the server has."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from longboat_crds.tracking import MLFLOW_KEYS
from longboat_runtime.tracking.feed import Entry, SampleTable
from longboat_runtime.tracking.tracker import STEP, TrackedJob, TrackingProblem, finite

FIELD = "mlflow"
RUN_TAG = "longboat.run"
_TABLES_TAG = "mlflow.loggedArtifacts"
# Limits of the tracking server on one request (MLflow, REST API, "Log Batch"), and the least of its limits on a value of all versions.
METRICS_AT_ONCE, PARAMETERS_AT_ONCE, VALUE_LENGTH, NAME_LENGTH = 1000, 100, 500, 250
# The most characters of an error of the client.
MESSAGE_LENGTH = 500
# By default the client itself doesn't retry: it might log twice what the server has stored. The next process begins with what that has.
_LIMITS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30"}


class Mlflow:
    """See `Tracker`."""

    def __init__(self, job: TrackedJob) -> None:
        """Begins or resumes the run. Raises TrackingProblem."""
        spec = job.spec["tracking"][FIELD]
        self.lacking: TrackingProblem | None = None
        self._uri: str = spec["trackingUri"]
        credentials = {key: value for key in MLFLOW_KEYS if (value := job.secret(key))}
        if "secret" in spec and job.secrets is not None and not credentials:
            name = spec["secret"]["name"]
            raise TrackingProblem(
                f"{FIELD}.secret",
                f"No Secret {name} with the key {MLFLOW_KEYS[0]}, or {MLFLOW_KEYS[1]} and {MLFLOW_KEYS[2]}, in the job's namespace. "
                f"Create it: `kubectl create secret generic {name} --from-literal={MLFLOW_KEYS[0]}=...`; the job finds it within "
                "minutes.",
            )
        # Only here, after the start: /proc shows the environment that a process started with.
        os.environ.update(credentials)
        for name, value in _LIMITS.items():
            os.environ.setdefault(name, value)
        try:
            import mlflow
        except ImportError as error:
            raise TrackingProblem(
                FIELD, f"The runtime's image has no client ({error}). Use one with Longboat's extra `tracking`."
            ) from error
        self._entities, self._failed = mlflow.entities, mlflow.exceptions.MlflowException
        self._client = mlflow.MlflowClient(self._uri)
        self._send(lambda: self._open(job, spec))

    def log(self, entry: Entry) -> None:
        record = entry.record
        if entry.samples and self.lacking is None:
            self._log_table(record.step, entry.samples)
        time = round(record.time * 1000)
        # The step itself comes last, in the last request if there are several: it says that the record is complete.
        values = sorted(finite(record).items(), key=lambda item: (item[0] == STEP, item[0]))
        metrics = [self._entities.Metric(metric_name(name), value, time, record.step) for name, value in values]
        for at in range(0, len(metrics), METRICS_AT_ONCE):
            part = metrics[at : at + METRICS_AT_ONCE]
            self._send(lambda part=part: self._client.log_batch(self._id, metrics=part))

    def caught_up(self) -> None: ...

    def _log_table(self, step: int, samples: SampleTable) -> None:
        """Stores the table in the form of the client's own tables. Where artifacts can't be stored, only tables are missing.

        Not the client's `log_table`: it appends to a file that is there, and so doubles what is logged again.
        """
        path = f"samples/step-{step:08d}.json"
        try:
            self._client.log_text(
                self._id, json.dumps({"columns": [*samples.columns], "data": [*map(list, samples.rows)]}), path
            )
            # The page of a run shows this one as a table; more would soon be too much for a tag.
            self._client.set_tag(self._id, _TABLES_TAG, json.dumps([{"path": path, "type": "table"}]))
        except Exception as error:  # noqa: BLE001 - a store's own client may raise anything
            self.lacking = TrackingProblem(FIELD, f"Tables of samples can't be stored: {_one_line(error)}")

    def finish(self, ending: str | None) -> None:
        if ending is not None:
            status = "FAILED" if ending == "failed" else "FINISHED"
            self._send(lambda: self._client.set_terminated(self._id, status))

    def _open(self, job: TrackedJob, spec: Mapping[str, Any]) -> None:
        experiment = self._experiment(spec["experiment"])
        runs = self._client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{job.run}'", max_results=1)
        if runs:
            (run,) = runs
            self._client.update_run(run.info.run_id, status="RUNNING")
        else:
            tags = {**spec["tags"], RUN_TAG: job.run}
            run = self._client.create_run(experiment, tags=tags, run_name=spec.get("name", job.name))
        self._id = run.info.run_id
        self.place = f"{self._uri.rstrip('/')}/#/experiments/{experiment}/runs/{self._id}"
        self.position = int(run.data.metrics.get(STEP, -1))
        # A parameter can't be changed once it is logged: an edit of the spec shows in the job itself.
        parameters = [
            self._entities.Param(name, value) for name, value in parameters_of(job.spec) if name not in run.data.params
        ]
        for at in range(0, len(parameters), PARAMETERS_AT_ONCE):
            self._client.log_batch(self._id, params=parameters[at : at + PARAMETERS_AT_ONCE])

    def _experiment(self, name: str) -> str:
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return str(self._client.create_experiment(name))
            except self._failed:
                # Another job may have just created it.
                experiment = self._client.get_experiment_by_name(name)
                if experiment is None:
                    raise
        return str(experiment.experiment_id)

    def _send(self, request: Any) -> None:
        """Makes a request. Raises TrackingProblem."""
        try:
            request()
        except self._failed as error:
            text = _one_line(error)
            refused = re.search(r"\b(401|403)\b", text) or error.error_code in ("UNAUTHENTICATED", "PERMISSION_DENIED")
            if refused:
                raise TrackingProblem(f"{FIELD}.secret", f"The server refuses the credentials: {text}") from error
            raise TrackingProblem(f"{FIELD}.trackingUri", f"{self._uri} doesn't answer, or refuses: {text}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:MESSAGE_LENGTH]


def metric_name(name: str) -> str:
    """Replaces `..` by `__`, and by `_` empty parts and all but ASCII letters, digits and `_-. :/`; cuts the name to NAME_LENGTH. Pure."""
    allowed = re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)
    return "/".join(part.replace("..", "__") or "_" for part in allowed.split("/"))[:NAME_LENGTH]


def parameters_of(spec: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yields dotted path and text of each leaf of a spec, both cut to a length that every server takes. A list is one leaf. Pure."""
    for name, value in spec.items():
        path = f"{above}{name}"
        if isinstance(value, Mapping):
            yield from parameters_of(value, f"{path}.")
        else:
            yield metric_name(path), str(value)[:VALUE_LENGTH]
