"""Starts the process of each tracker of a job, restarts it with growing pauses, and shows in the status what it has said.

A tracker costs the driver a line of text a step. The driver never waits for one, except at its own end, for a bounded time.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import uuid
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from longboat_crds.job import RLJobSpec
from longboat_crds.reasons import Reason
from longboat_crds.status import PLACE_LENGTH, Problem, TrackingStatus
from longboat_runtime.status_fragment import MESSAGE_LENGTH, StatusFragment
from longboat_runtime.tracking.tracker import TrackedJob

log = structlog.get_logger()

# Where the keys of the trackers' Secrets are mounted.
SECRETS = Path("/etc/longboat/tracking")

# How long a tracker may take to finish, in seconds: once the job has ended, and if it resumes later, when the next start logs the
# rest. The first is less than a pod's grace (pods/pod.py), in which the agent ends the driver.
ENDED_SECONDS, PAUSED_SECONDS = 20.0, 3.0
# A process that has said nothing for this long hangs.
SILENCE_SECONDS = 300.0
# Pauses between starts double from the first to the longest; one that has logged something begins anew.
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0
# Lines of a process' standard error that are kept to say what it died of.
_ERROR_LINES = 20


class Trackers:
    """Runs the trackers of `spec.tracking`.

    `root` is the job's directory, `incarnation` the number of this start and `name` the job's. `secrets` is the directory of the
    trackers' Secrets, None for a job without Kubernetes. `news` is set when what the status shows of them has changed. `places` are those
    that an earlier start has shown.
    """

    def __init__(
        self,
        spec: RLJobSpec,
        root: Path,
        incarnation: int,
        name: str,
        news: asyncio.Event,
        secrets: Path | None,
        places: TrackingStatus | None = None,
    ) -> None:
        self._spec, self._root, self._incarnation, self._name = spec, root, incarnation, name
        self._news, self._secrets = news, secrets
        self._places = places or TrackingStatus()
        self._tasks: list[asyncio.Task[None]] = []
        self._ended = asyncio.Event()
        self._ending: str | None = None
        self._problems: dict[str, tuple[str, str]] = {}

    def start(self) -> None:
        """Starts a process for each tracker."""
        for kind in self._spec.tracking.to_json() if self._spec.tracking else ():
            self._tasks.append(asyncio.create_task(self._keep(kind), name=kind))

    async def finish(self, ending: str | None) -> None:
        """Lets trackers log what is left and ends them: within ENDED_SECONDS if the job has ended (`done` or `failed`).

        Within PAUSED_SECONDS if it resumes later (None). A tracker that pauses after a problem isn't waited for.
        """
        if not self._tasks:
            return
        self._ending = ending
        self._ended.set()
        _, late = await asyncio.wait(self._tasks, timeout=PAUSED_SECONDS if ending is None else ENDED_SECONDS)
        for task in late:
            log.warning("a tracker is ended before it has everything", tracker=task.get_name())
            task.cancel()
        for task, result in zip(self._tasks, await asyncio.gather(*self._tasks, return_exceptions=True), strict=True):
            if isinstance(result, Exception):
                log.error("a tracker failed", tracker=task.get_name(), exc_info=result)

    async def _keep(self, kind: str) -> None:
        """Runs the tracker until it has ended well, or the job ends while it pauses."""
        pause = FIRST_PAUSE
        with tempfile.TemporaryDirectory(prefix="longboat-tracker-", ignore_cleanup_errors=True) as scratch:
            while True:
                logged, problem = await self._run(kind, scratch)
                if problem is None:
                    return
                self._report(kind, problem)
                pause = FIRST_PAUSE if logged else pause
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), pause)
                    return
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _run(self, kind: str, scratch: str) -> tuple[bool, tuple[str, str] | None]:
        """Runs the process once. Returns whether it has logged something, and its problem: the field and the message."""
        try:
            job = TrackedJob(
                run_id(self._root),
                self._name,
                str(self._root),
                self._incarnation,
                self._spec.to_json(),
                str(self._secrets) if self._secrets else None,
                scratch,
            )
            # A group of its own: what it starts ends with it, and Ctrl-C reaches the driver alone.
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "longboat_runtime.tracking.process",
                kind,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                start_new_session=True,
            )
        except OSError as error:
            return False, (kind, f"The tracker can't be started: {error}")
        errors: deque[str] = deque(maxlen=_ERROR_LINES)
        telling = asyncio.create_task(self._tell(process, job))
        heard = asyncio.create_task(_keep_lines(process, errors))
        try:
            logged, problem = await self._listen(kind, process)
            if problem is None and (status := await process.wait()):
                await heard
                last = next((line for line in reversed(errors) if line), "it said nothing")
                problem = kind, f"The tracker's process ended with exit status {status}: {last}"
            return logged, problem
        finally:
            telling.cancel()
            heard.cancel()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def _tell(self, process: Process, job: TrackedJob) -> None:
        assert process.stdin is not None
        with suppress(ConnectionError):
            process.stdin.write(json.dumps(job.to_json()).encode() + b"\n")
            await process.stdin.drain()
            await self._ended.wait()
            process.stdin.write(json.dumps(self._ending).encode() + b"\n")
            process.stdin.close()

    async def _listen(self, kind: str, process: Process) -> tuple[bool, tuple[str, str] | None]:
        assert process.stdout is not None
        logged = False
        while True:
            try:
                line = await asyncio.wait_for(process.stdout.readline(), SILENCE_SECONDS)
            except TimeoutError:
                return logged, (kind, f"The tracker's client hangs: nothing for {SILENCE_SECONDS:.0f} s.")
            if not line:
                return logged, None
            message: Mapping[str, Any] = json.loads(line)
            problem = (message["field"], message["message"]) if "message" in message else None
            if problem is not None and "logged" not in message:
                return logged, problem
            if message:
                self._report(kind, problem)
            logged |= "logged" in message
            if "place" in message:
                log.info("tracked", tracker=kind, place=message["place"])
                place = {kind: message["place"][:PLACE_LENGTH]}
                self._places = TrackingStatus.model_validate({**self._places.to_json(), **place})
                self._news.set()

    def _report(self, kind: str, problem: tuple[str, str] | None) -> None:
        """Notes this tracker's problem, or that it has none any more."""
        if problem == self._problems.get(kind):
            return
        if problem is None:
            del self._problems[kind]
        else:
            self._problems[kind] = problem
            log.warning("a tracker doesn't log", tracker=kind, field=problem[0], problem=problem[1])
        self._news.set()

    def status(self) -> StatusFragment:
        """Returns where trackers show the job, and why some don't log."""
        tracking = self._places if self._places.to_json() else None
        problems = list(self._problems.values())
        if not problems:
            return StatusFragment({"tracking": tracking})
        message = " ".join(message for _, message in problems)
        field = f"spec.tracking.{problems[0][0]}"
        return StatusFragment(
            {"tracking": tracking},
            problems=(Problem(reason=Reason.TRACKING_FAILED, field=field, message=message[:MESSAGE_LENGTH]),),
        )


def run_id(root: Path) -> str:
    """Identifies the job's run in its trackers: made once, and kept beside the checkpoints. Raises OSError."""
    file = root / "tracking" / "run-id"
    with suppress(FileNotFoundError):
        return file.read_text().strip()
    file.parent.mkdir(parents=True, exist_ok=True)
    made = file.with_name(f".run-id-{os.getpid()}")
    made.write_text(uuid.uuid4().hex[:16] + "\n")
    with suppress(FileExistsError):
        os.link(made, file)
    made.unlink()
    return file.read_text().strip()


async def _keep_lines(process: Process, lines: deque[str]) -> None:
    assert process.stderr is not None
    while chunk := await process.stderr.read(65_536):
        lines.extend(chunk.decode(errors="replace").splitlines())
