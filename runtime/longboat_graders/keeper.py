"""Keeps one episode: starts its process, watches what that and all below it hold, and removes what is left of them.

    zygote --fork--> keeper --fork--> player (the environment's code) --> whatever that starts

A keeper adopts what the player leaves behind, so it finds every process of its episode, and no other. Its server sends it one request,
{launch} with the task as body, and may send {stop}; it answers {begun} and at last, when nothing is left, {result}. If the server goes
away it ends everything at once. The secret is in the request alone: no argument and no environment variable has it.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import sys
import time

from longboat_graders import prctl
from longboat_graders.episode_messages import (
    MESSAGE_CHARACTERS,
    OUTPUT_CHARACTERS,
    EpisodeBounds,
    EpisodeEnd,
    EpisodeResult,
    Launch,
    as_reward,
)
from longboat_graders.forks import seed
from longboat_graders.frames import FrameBuffer, FrameError, encode, from_json
from longboat_graders.leftovers import remove_tree
from longboat_graders.process_tree import MOST_ENTRIES, Tree, descendants, end_group, lead_group, memory, written
from longboat_graders.sandbox import allowed_limits, data_bytes, die_first
from longboat_graders.seccomp import Filter, let_start

TYPE_CHECKING = False  # `typing` itself would be in the memory of every episode
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn

    from longboat_graders.environment import Play

# How long an environment that was told to stop has until it is killed, in seconds.
STOP_SECONDS = 10.0
# How often an episode's processes are looked at, in seconds: several together, and one alone, whose memory the kernel limits itself.
_INTERVAL, _ALONE_INTERVAL = 0.25, 1.0
# How often the files that it has written are measured, in seconds; and how many times the CPU seconds of that go by until the next time,
# so that as many episodes as a pod may play measure thousands of files each for no more than about one CPU.
_WRITTEN_SECONDS, _WRITTEN_PAUSE = 1.0, 500
_SERVER_FD = 3
_REPORT_FD = 3
_READ_BYTES = 64 * 1024
# What comes with the listener: no frame begins so.
_LISTENER = b"l"
_OUTPUT_BYTES = 4 * OUTPUT_CHARACTERS
_MOST_REPORT_BYTES = 8 * 2**20


class Keeper:
    """One episode's keeper. `starts` is the filter by which the kernel asks before a process starts, None where it can't ask."""

    def __init__(self, server: socket.socket, play: Play, directory: str, starts: Filter | None) -> None:
        self._server, self._play, self._directory, self._starts = server, play, directory, starts
        self._buffer, self._report = FrameBuffer(), FrameBuffer(_MOST_REPORT_BYTES)
        # By which the kernel asks about new processes and threads, once the player has sent it; and whether its report goes on.
        self._listener: int | None = None
        self._reporting = True
        self._output = b""
        # How it ends: what the player has reported, or why it was ended; and when it is killed, on the monotonic clock.
        self._result: EpisodeResult | None = None
        self._kill_at = float("inf")
        self._gone = False

    def run(self) -> None:
        """Plays the episode that the server asks for, if it does."""
        messages: list[tuple[dict[str, Any], bytes]] = []
        while not messages:
            data = self._server.recv(_READ_BYTES)
            if not data:
                return
            messages = self._buffer.feed(data)
        (request, task), *later = messages
        launch = Launch.from_json(request["launch"])
        began = time.monotonic()
        try:
            os.mkdir(self._directory, 0o700)
            cpu_seconds = self._keep(launch, task, stopped=bool(later))
        except OSError as error:
            cpu_seconds, self._result = 0.0, EpisodeResult(EpisodeEnd.LOST, message=f"it can't be started: {error}")
        remove_directory(self._directory)
        assert self._result is not None
        result = {
            **self._result.to_json(),
            "output": self._output.decode(errors="replace")[-OUTPUT_CHARACTERS:],
            "seconds": time.monotonic() - began,
            "cpu_seconds": cpu_seconds,
        }
        self._tell({"result": result})

    def _keep(self, launch: Launch, task: bytes, *, stopped: bool) -> float:
        """Starts the player and watches it until nothing of it is left. Returns the CPU seconds of its processes."""
        reader, writer = os.pipe()
        own, players = socket.socketpair()
        keeper, began = os.getpid(), time.monotonic()
        pid = os.fork()
        if pid == 0:
            _be_player(self._play, launch, task, self._directory, self._starts, players, writer, keeper)
        os.close(writer)
        players.close()
        lead_group(pid)
        os.set_blocking(reader, False)
        with own:
            if stopped:
                self._stop(pid, EpisodeResult(EpisodeEnd.STOPPED))
            self._watch(pid, own, reader, launch.bounds, began + launch.bounds.wall_seconds)
            cpu_seconds, status = end_group(pid)
            self._read_report(own)
        while self._read_output(reader):
            continue
        os.close(reader)
        if self._result is None:
            self._result = EpisodeResult(EpisodeEnd.LOST, message=_unanswered(status))
        return cpu_seconds

    def _watch(self, pid: int, own: socket.socket, reader: int, bounds: EpisodeBounds, wall_end: float) -> None:
        """Waits until the player ends, or has to be killed. `own` brings its listener and its report."""
        own.setblocking(False)
        self._server.setblocking(False)
        pidfd = os.pidfd_open(pid)
        poll = select.poll()
        for fd in (pidfd, self._server.fileno(), own.fileno(), reader):
            poll.register(fd, select.POLLIN)
        threads, now = 1, time.monotonic()
        look_at, look_at_files = now + _INTERVAL, now + _WRITTEN_SECONDS
        try:
            while now < self._kill_at and not self._gone:
                ready = dict(poll.poll(1e3 * max(min(look_at, self._kill_at, wall_end) - now, 0.0)))
                listener = self._listener
                question = 0 if listener is None else ready.get(listener, 0)
                if listener is not None and question and not question & select.POLLIN:
                    poll.unregister(listener)  # nobody is left who could ask
                    question = 0
                if reader in ready and not self._read_output(reader):
                    poll.unregister(reader)
                if own.fileno() in ready:
                    self._read_report(own)
                    if listener is None and self._listener is not None:
                        poll.register(self._listener, select.POLLIN)
                    if not self._reporting:
                        poll.unregister(own)
                if pidfd in ready or (self._result is not None and self._kill_at == float("inf")):
                    return
                if self._server.fileno() in ready:
                    self._follow_server(pid)
                now = time.monotonic()
                if listener is not None and question:
                    if threads >= bounds.processes:
                        threads = descendants(bounds.processes).threads
                    if threads >= bounds.processes:
                        self._lose(
                            f"it had more than {bounds.processes} processes and threads (environments[].limits.processes)"
                        )
                        return
                    let_start(listener)
                    threads += 1
                if now >= wall_end:
                    wall_end = float("inf")
                    self._stop(pid, _lost("it took longer than its wall limit (environments[].limits.wallSeconds)"))
                if now < look_at:
                    continue
                tree = descendants(bounds.processes)
                threads = tree.threads
                look_at = now + (_ALONE_INTERVAL if len(tree.pids) == 1 else _INTERVAL)
                if (excess := _excess(tree, bounds)) is not None:
                    self._lose(excess)
                    return
                if now >= look_at_files:
                    began = time.thread_time()
                    size = written(self._directory, tree.pids, ())
                    look_at_files = now + max(_WRITTEN_SECONDS, _WRITTEN_PAUSE * (time.thread_time() - began))
                    if size > bounds.file_size:
                        most = bounds.file_size >> 20
                        self._lose(
                            f"it had written more than {most} MiB, or {MOST_ENTRIES} files, to its directory (environments[].limits.fileSize)"
                        )
                        return
        finally:
            os.close(pidfd)
            if self._listener is not None:
                os.close(self._listener)

    # --- What is heard ---

    def _read_report(self, own: socket.socket) -> None:
        """Reads what the player says: the listener of its filter, if it has one, then its report."""
        try:
            if self._starts is not None and self._listener is None:
                data, files, _, _ = socket.recv_fds(own, 1, 1)
                if data == _LISTENER:
                    [self._listener] = files
                else:
                    self._report.feed(data)
            while data := own.recv(_READ_BYTES):
                for message, _ in self._report.feed(data):
                    self._take(message)
        except BlockingIOError:
            return
        except (OSError, FrameError, KeyError, TypeError, ValueError) as error:
            self._lose(f"its report can't be read: {error}")
        self._reporting = False

    def _take(self, message: Mapping[str, Any]) -> None:
        if "begun" in message:
            self._tell({"begun": True})
        elif self._result is None:
            self._result = EpisodeResult.from_json(message["result"])

    def _read_output(self, reader: int) -> bool:
        """Keeps the end of what was printed. Returns False if nothing more can be read."""
        try:
            data = os.read(reader, _READ_BYTES)
        except BlockingIOError:
            return False
        self._output = (self._output + data)[-_OUTPUT_BYTES:]
        return bool(data)

    def _follow_server(self, pid: int) -> None:
        try:
            data = self._server.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._gone = True
            self._result = self._result or EpisodeResult(EpisodeEnd.STOPPED)
            return
        if self._buffer.feed(data):
            self._stop(pid, EpisodeResult(EpisodeEnd.STOPPED))

    # --- How it ends ---

    def _stop(self, pid: int, result: EpisodeResult) -> None:
        """Tells the environment to stop. What it returns from here on doesn't count."""
        if self._kill_at < float("inf"):
            return
        self._result = self._result or result
        self._kill_at = time.monotonic() + STOP_SECONDS
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            return

    def _lose(self, message: str) -> None:
        self._result = self._result or _lost(message)

    def _tell(self, message: Mapping[str, Any]) -> None:
        self._server.setblocking(True)
        try:
            self._server.sendall(encode(message))
        except OSError:
            self._gone = True
        self._server.setblocking(False)


def _excess(tree: Tree, bounds: EpisodeBounds) -> str | None:
    """Says which bound processes exceed; None if none."""
    if tree.threads > bounds.processes:
        return f"it had more than {bounds.processes} processes and threads (environments[].limits.processes)"
    if memory(tree, bounds.memory) > bounds.memory:
        return f"its processes held more than {bounds.memory >> 20} MiB of memory (environments[].limits.memory)"
    return None


def _lost(message: str) -> EpisodeResult:
    return EpisodeResult(EpisodeEnd.LOST, message=message)


def _unanswered(status: int | None) -> str:
    if status is None:
        return "its process is gone"
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGXFSZ:
        return "it wrote more to a file than it may (environments[].limits.fileSize)"
    how = f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"
    return f"its process {how} before it returned"


def remove_directory(directory: str) -> None:
    """Removes an episode's directory if it is there; says so in the log if it can't be removed."""
    try:
        if os.path.islink(directory):
            os.unlink(directory)  # what it points to isn't the episode's
        else:
            remove_tree(directory)
    except FileNotFoundError:
        return
    except OSError as error:
        print(f"what an episode has left in {directory} can't be removed: {error}", file=sys.stderr, flush=True)


def keep(server: int, play: Play, directory: str, starts: Filter | None, zygote: int) -> NoReturn:
    """Runs a keeper in this process, which `zygote` has just forked, and ends the process."""
    code = 1
    try:
        os.setpgid(0, 0)
        prctl.die_with_parent()
        prctl.adopt_orphans()
        if os.getppid() == zygote:
            os.dup2(server, _SERVER_FD, False)
            os.closerange(_SERVER_FD + 1, os.sysconf("SC_OPEN_MAX"))
            Keeper(socket.socket(fileno=_SERVER_FD), play, directory, starts).run()
        code = 0
    except BaseException:  # noqa: BLE001 - this process ends here
        sys.excepthook(*sys.exc_info())
    finally:
        # Whatever happens, a keeper must never continue as a zygote.
        os._exit(code)


# --- The player's own process ------------------------------------------------------------------------------------------


def _be_player(
    play: Play,
    launch: Launch,
    task: bytes,
    directory: str,
    starts: Filter | None,
    report: socket.socket,
    output: int,
    keeper: int,
) -> NoReturn:
    """Plays the episode in this process, which its keeper has just forked. Never returns."""
    try:
        os.setpgid(0, 0)
        prctl.die_with_parent()
        if os.getppid() != keeper:
            os._exit(1)
        os.dup2(output, 1)
        os.dup2(output, 2)
        connection = os.dup(report.fileno())
        os.dup2(connection, _REPORT_FD, False)
        _limit(launch.bounds)
        if starts is not None:
            # The player keeps no copy of this descriptor.
            with socket.socket(fileno=os.dup(_REPORT_FD)) as sender:
                socket.send_fds(sender, [_LISTENER], [starts.install_asking(os.getpid())])
        os.closerange(_REPORT_FD + 1, os.sysconf("SC_OPEN_MAX"))
        os.chdir(directory)
        os.environ.update(HOME=directory, TMPDIR=directory)
        if "tempfile" in sys.modules:
            sys.modules["tempfile"].tempdir = None  # type: ignore[attr-defined]
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        seed(launch.seed)
        _play(play, launch, from_json(task))
    except BaseException as error:  # noqa: BLE001 - this process ends here
        _say({"result": _raised(error).to_json()})
    finally:
        os._exit(1)


def _limit(bounds: EpisodeBounds) -> None:
    # The keeper reads its memory usage.
    prctl.show_memory()
    die_first()
    data = data_bytes() + bounds.memory
    for kind, bound in (
        (resource.RLIMIT_DATA, data),
        (resource.RLIMIT_FSIZE, bounds.file_size),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, allowed_limits(kind, bound, bound))


def _play(play: Play, launch: Launch, task: Mapping[str, Any]) -> None:
    import asyncio

    from longboat_graders.environment import Model

    async def episode() -> EpisodeResult:
        try:
            value = await play(task, Model(launch.base_url, launch.model, launch.api_key))
            reward = as_reward(value)
        except BaseException as error:  # noqa: BLE001 - whatever an environment may raise
            return _raised(error)
        return EpisodeResult(EpisodeEnd.FINISHED, reward.reward, reward.rewards)

    async def run() -> None:
        playing = asyncio.create_task(episode())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, playing.cancel)
        _say({"begun": True})
        result = await playing
        sys.stdout.flush()
        sys.stderr.flush()
        _say({"result": result.to_json()})
        # Tasks and threads that are left end with the process.
        os._exit(0)

    asyncio.run(run())


def _say(message: Mapping[str, Any]) -> None:
    data = memoryview(encode(message))
    while data:
        data = data[os.write(_REPORT_FD, data) :]


def _raised(error: BaseException) -> EpisodeResult:
    """Makes the result of an environment that raised: the error and the end of its traceback."""
    import traceback

    trace = error.__traceback__
    # Without the frame of this module.
    text = "".join(traceback.format_exception(type(error), error, trace and trace.tb_next)).rstrip()
    head = f"{type(error).__name__}: {error}"[: MESSAGE_CHARACTERS // 4]
    return EpisodeResult(EpisodeEnd.ERROR, message=f"{head}\n{text[-(MESSAGE_CHARACTERS * 3 // 4 - 1) :]}")
