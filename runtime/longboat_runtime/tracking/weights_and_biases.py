"""A run in Weights & Biases, by its own client.

Online the run is resumed where the server says that it ended. Offline every process begins another directory of the run
(`tracking/wandb/offline-run-*` below the job's directory) after the last step that the earlier ones hold.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from longboat_runtime.tracking.feed import Entry
from longboat_runtime.tracking.tracker import TrackedJob, TrackingProblem, finite

FIELD = "weightsAndBiases"
KEY = "WANDB_API_KEY"
# How long the server may take to answer when a run begins, in seconds.
INIT_SECONDS = 60
# The directory of offline runs, below the job's; the client adds `wandb`.
DIRECTORY = "tracking"

# A file of a run: LevelDB's log format (leveldb/doc/log_format.md) after a header of its own.
_FILE_HEADER, _BLOCK, _HEADER = 7, 32_768, struct.Struct("<IHB")
_FULL, _FIRST, _LAST = 1, 2, 4


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
            raise TrackingProblem(f"{FIELD}.{field}", f"The server doesn't answer, or refuses: {_one_line(error)}") from error
        if online:
            self.position = self._run.starting_step - 1
            self.place = self._run.url or job.run
        else:
            self.place = str(directory / "wandb")
            self.position = max((last_step(file) for file in directory.glob(f"wandb/*-{job.run}/*.wandb")), default=-1)

    def log(self, entry: Entry) -> None:
        row: dict[str, Any] = dict(finite(entry.record))
        if samples := entry.samples:
            row["samples"] = self._wandb.Table(columns=list(samples.columns), data=[list(one) for one in samples.rows])
        # Without `commit` the row would wait for the next one, and be lost if this process ended.
        self._run.log(row, step=entry.record.step, commit=True)

    def finish(self, ending: str | None) -> None:
        self._run.finish(exit_code=int(ending == "failed"))
        # Until the client's own process, which writes the files, has ended.
        self._wandb.teardown()


def last_step(file: Path) -> int:
    """The last step in the file of an offline run, -1 if it has none. A torn end is left out."""
    from wandb.proto.wandb_internal_pb2 import Record as Message

    last = -1
    for body in messages(file.read_bytes()):
        message = Message.FromString(body)
        if message.WhichOneof("record_type") == "history":
            steps = [item.value_json for item in message.history.item if list(item.nested_key) == ["_step"]]
            last = max(last, *(int(float(step)) for step in steps))
    return last


def messages(content: bytes) -> Iterator[bytes]:
    """The messages in the file of a run, a LevelDB log; one that continues in the next block is put together."""
    at, body = _FILE_HEADER, b""
    while at + _HEADER.size <= len(content):
        if (left := _BLOCK - at % _BLOCK) < _HEADER.size:
            at += left
            continue
        _, length, kind = _HEADER.unpack_from(content, at)
        part = content[at + _HEADER.size : at + _HEADER.size + length]
        if len(part) < length or not length:
            return
        at += _HEADER.size + length
        body = part if kind in (_FULL, _FIRST) else body + part
        if kind in (_FULL, _LAST):
            yield body


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")
