"""A run in Weights & Biases, by its own client.

Online the run is resumed where the server says that it ended. Offline a run is one directory (`tracking/wandb/offline-run-*` below the
job's), which every process writes anew from the job's files: to the server, the directory that is synced last is the whole run.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from longboat_runtime.tracking.feed import Entry, SampleTable
from longboat_runtime.tracking.tracker import TrackedJob, TrackingProblem, finite

FIELD = "weightsAndBiases"
KEY = "WANDB_API_KEY"
# How long the server may take to answer when a run begins, in seconds.
INIT_SECONDS = 30
# The directory of offline runs, below the job's; the client adds `wandb`.
DIRECTORY = "tracking"


class WeightsAndBiases:
    """See `Tracker`."""

    def __init__(self, job: TrackedJob) -> None:
        """Begins or resumes the run. Raises TrackingProblem."""
        spec = job.spec["tracking"][FIELD]
        self.lacking: TrackingProblem | None = None
        online, key = spec["mode"] == "Online", job.secret(KEY)
        if online and key is None and job.secrets is not None:
            name = spec["secret"]["name"]
            raise TrackingProblem(
                f"{FIELD}.secret",
                f"No Secret {name} with the key {KEY} in the job's namespace. Create it: `kubectl create secret generic {name} "
                f"--from-literal={KEY}=...`; the job finds it within minutes.",
            )
        try:
            import wandb
        except ImportError as error:
            raise TrackingProblem(
                FIELD, f"The runtime's image has no client ({error}). Use one with Longboat's extra `tracking`."
            ) from error
        self._wandb = wandb
        directory = Path(job.root) / DIRECTORY if not online else Path(job.scratch)
        directory.mkdir(parents=True, exist_ok=True)
        # What the driver's host has to say about itself (code, hardware, console) is of no use here.
        settings = wandb.Settings(
            api_key=key,
            init_timeout=INIT_SECONDS,
            login_timeout=INIT_SECONDS,
            console="off",
            silent=True,
            disable_git=True,
            disable_code=True,
            save_code=False,
            x_disable_meta=True,
            x_disable_stats=True,
            **({"base_url": spec["baseUrl"]} if "baseUrl" in spec else {}),
        )
        try:
            self._run = wandb.init(
                id=job.run,
                resume="allow",
                project=spec["project"],
                entity=spec.get("entity"),
                name=spec.get("name", job.name),
                group=spec.get("group"),
                tags=spec["tags"],
                mode="online" if online else "offline",
                dir=directory,
                config=dict(job.spec),
                settings=settings,
            )
        except (wandb.errors.AuthenticationError, wandb.errors.UsageError) as error:
            cure = f"Check the key {KEY} of the Secret." if job.secrets else f"Run `wandb login`, or set {KEY}."
            raise TrackingProblem(f"{FIELD}.secret", f"{_one_line(error)}. {cure}") from error
        except wandb.errors.Error as error:
            field = "baseUrl" if "baseUrl" in spec else "mode"
            raise TrackingProblem(
                f"{FIELD}.{field}", f"The server doesn't answer, or refuses: {_one_line(error)}"
            ) from error
        self._earlier: list[Path] = []
        if online:
            self.position = self._run.starting_step - 1
            self.place = self._run.url or job.run
        else:
            self.position, own = -1, Path(self._run.dir).parent
            self.place = str(own.parent)
            self._earlier = [path for path in own.parent.glob(f"offline-run-*-{job.run}") if path != own]
        files = [file for path in self._earlier for file in path.glob("files/media/table/samples_*.table.json")]
        # The client's own number in a file's name isn't the step.
        self._tables = {table.rows[0][0]: file for file in files if (table := _table(file))}

    def log(self, entry: Entry) -> None:
        row: dict[str, Any] = dict(finite(entry.record))
        if samples := entry.samples or self._table_before(entry.record.step):
            row["samples"] = self._wandb.Table(
                columns=list(samples.columns), data=[list(sample) for sample in samples.rows]
            )
        # Without `commit` the row would wait for the next one, and be lost if this process ended.
        self._run.log(row, step=entry.record.step, commit=True)

    def caught_up(self) -> None:
        for directory in self._earlier:
            shutil.rmtree(directory, ignore_errors=True)
        self._earlier, self._tables = [], {}

    def _table_before(self, step: int) -> SampleTable | None:
        """Reads the table that an earlier directory has for this step, if any: the job may have removed the file it was made from."""
        file = self._tables.get(step)
        return _table(file) if file else None

    def finish(self, ending: str | None) -> None:
        self._run.finish(exit_code=int(ending == "failed"))
        # Until the client's own process, which writes the files, has ended.
        self._wandb.teardown()


def _table(file: Path) -> SampleTable | None:
    """Reads a table in the client's own files; None for one whose writing was cut short."""
    try:
        content = json.loads(file.read_text())
    except ValueError:
        return None
    return SampleTable(content["columns"], content["data"])


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")
