"""Runs programs for a case runner, one after the other, and ends each with all the processes that it has started.

A case runner forks its launcher before it reads its sample, and passes it only Runs and open files. So expected results are never in the
memory of the launcher or of the programs, which are its forks.

Requests are lines of JSON: a Run, with the files of `FILES`, is answered by an Ended once nothing of it is left; `{"stop": true}` ends a
program early. A launcher dies with its case runner, and its programs with it. A fork of it becomes a program by confining itself, for good.
"""

from __future__ import annotations

import io
import json
import os
import random
import resource
import select
import signal
import socket
import sys
import time
from dataclasses import asdict, dataclass

from longboat_graders import landlock, prctl
from longboat_graders.leftovers import remove_tree
from longboat_graders.process_tree import Tree, descendants, end_group, lead_group, memory, written
from longboat_graders.sandbox import allowed_limits, cpu_limit, data_bytes, die_first
from longboat_graders.seccomp import Filter, can_ask, let_start, program_filter
from longboat_graders.times import (
    WALL_LIMIT_FACTOR,
    OwnLimit,
    OwnTime,
    Processes,
    Slowdown,
    waited_here,
    waiting_is_counted,
)
from longboat_graders.verdict import CaseResult

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from types import ModuleType
    from typing import Any, NoReturn

    from longboat_graders.messages import SandboxSettings

# The files that come with a request: standard streams, the program's source, and its end of the connection to the case runner.
FILES = ("stdin", "stdout", "stderr", "source", "peer")
# How often a program's processes are checked, in seconds: at first, and once it runs longer than _SHORT_RUN_SECONDS.
_FIRST_INTERVAL, _INTERVAL, _SHORT_RUN_SECONDS = 0.005, 0.015, 0.1
# How often the files that it has written are measured, in seconds.
_WRITTEN_SECONDS = 0.1
# How often at least its wait for a CPU is read where that counts: a process that has ended can't be asked any more.
_OWN_SECONDS = 0.1
_MESSAGE_BYTES = 64 * 1024
# Kinds of program: Python that reads and prints, Python whose functions are called, and a command.
SCRIPT, SERVED, COMMAND = "script", "served", "command"
# The kernel counts a user's processes on the whole node, so this doesn't limit one case: the launcher does that.
_PROCESSES_OF_USER = 4096
_OPEN_FILES = 128
# Digits that a number may have as text: more than the 4300 of Python's own limit, few enough to be read quickly.
DIGITS = 50_000
# Modules that functions in such datasets use without importing them.
_STAR_IMPORTS = ("typing", "collections", "heapq", "bisect", "itertools", "functools", "math")
_PLAIN_IMPORTS = (
    "re",
    "string",
    "operator",
    "random",
    "copy",
    "sys",
    "json",
    "datetime",
    "statistics",
    "queue",
    "decimal",
    "fractions",
)
_IMPORTS = (*_STAR_IMPORTS, *_PLAIN_IMPORTS)
# The descriptor that connects a program whose functions are called to its case runner.
_PEER = 3


@dataclass(frozen=True, slots=True)
class CaseLimit:
    """`seconds` limits the own seconds of a test case (see `times`) where it is learned, None where none is. `slowdown` is the node's."""

    seconds: float | None = None
    slowdown: float = 1.0


@dataclass(frozen=True, slots=True)
class Run:
    """`kind` is that of a `program.Started`; `seconds` limits its own seconds, and the CPU time of all processes.

    `build` lets it write where programs are compiled, instead of its own directory. `own` may limit its own seconds further.
    """

    kind: str
    seconds: float
    seed: int = 0
    command: tuple[str, ...] = ()
    build: bool = False
    own: CaseLimit = CaseLimit()


@dataclass(frozen=True, slots=True)
class Ended:
    """Says how a program ended: `limit` is the one that it exceeded, if any, and `status` its exit code (negative: signal), if known.

    `seconds` are of the wall clock, `cpu_seconds` those of all its processes. `own_seconds` are there if their limit is learned; `limited`
    says that this limit ended it, `starved` that it was ended since it hardly got a CPU.
    """

    limit: CaseResult | None
    status: int | None
    seconds: float
    cpu_seconds: float
    own_seconds: float | None = None
    limited: bool = False
    starved: bool = False


class Launcher:
    """Controls a launcher from its case runner. Forks it at once.

    `directory` is the case runner's own, `readable` what else programs may read, `protected` are processes that they may not signal.
    """

    def __init__(
        self, directory: str, settings: SandboxSettings, readable: Sequence[str], protected: Sequence[int]
    ) -> None:
        self.directory = directory
        for name in (run_directory(directory), build_directory(directory)):
            os.makedirs(name, 0o700, exist_ok=True)
        self._socket, child_end = socket.socketpair()
        case_runner = os.getpid()
        if os.fork() == 0:
            self._socket.close()
            _serve(child_end, case_runner, directory, settings, readable, protected)
        child_end.close()

    def fileno(self) -> int:
        """Returns the file descriptor of the connection."""
        return self._socket.fileno()

    def moved(self, number: int) -> None:
        """Takes `number` as the connection's file descriptor from now on."""
        self._socket.detach()
        self._socket = socket.socket(fileno=number)

    def start(self, run: Run, files: Mapping[str, int]) -> None:
        """Starts a program; `ended` waits for it. `files` are descriptors by the names of FILES; the last may be missing."""
        descriptors = [files[name] for name in FILES if name in files]
        socket.send_fds(self._socket, [_line(asdict(run))], descriptors)

    def stop(self) -> None:
        """Ends the program."""
        self._socket.send(_line({"stop": True}))

    def ended(self) -> Ended:
        """Returns how the program ended. Raises ConnectionError if the launcher itself has ended."""
        data = b""
        while not data.endswith(b"\n"):
            more = self._socket.recv(_MESSAGE_BYTES)
            if not more:
                raise ConnectionError("the process that runs programs was ended")
            data += more
        message = json.loads(data)
        limit = message.pop("limit")
        return Ended(None if limit is None else CaseResult(limit), **message)


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def run_directory(directory: str) -> str:
    """Names the directory in which a case's program works and may write."""
    return f"{directory}/run"


def build_directory(directory: str) -> str:
    """Names the directory of the program's file for a `runCommand`, and of what is compiled from it."""
    return f"{directory}/build"


# --- The launcher's own process ---------------------------------------------------------------------------------------


def _serve(
    control: socket.socket,
    case_runner: int,
    directory: str,
    settings: SandboxSettings,
    readable: Sequence[str],
    protected: Sequence[int],
) -> NoReturn:
    try:
        prctl.die_with_parent()
        prctl.adopt_orphans()
        if os.getppid() == case_runner:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(control.fileno(), 3, False)
            control.detach()
            os.closerange(4, os.sysconf("SC_OPEN_MAX"))
            own = socket.socket(fileno=3)
            _Programs(own, directory, settings, readable, case_runner, [*protected, case_runner, os.getpid()]).serve()
    finally:
        # Whatever happens, a launcher must never continue as a case runner.
        os._exit(1)


class _Programs:
    """Runs one program after the other."""

    def __init__(
        self,
        control: socket.socket,
        directory: str,
        settings: SandboxSettings,
        readable: Sequence[str],
        case_runner: int,
        protected: Sequence[int],
    ) -> None:
        self._control, self._directory, self._settings, self._readable = control, directory, settings, readable
        self._case_runner, self._counted = case_runner, waiting_is_counted()
        self._slowdown: Slowdown | None = None
        scoped = landlock.version() >= landlock.SCOPES_SIGNALS
        self._asks = can_ask()
        self._filter = Filter(program_filter(protected, os.uname().machine, scoped=scoped, asks=self._asks))

    def serve(self) -> None:
        """Serves requests until the case runner closes its end."""
        unread = b""
        while True:
            data, files, _, _ = socket.recv_fds(self._control, _MESSAGE_BYTES, len(FILES))
            if not data:
                return
            *lines, unread = (unread + data).split(b"\n")
            # Requests to stop are for a program that has ended by itself. No other program is requested before one has ended.
            requests = [request for request in map(json.loads, lines) if "stop" not in request]
            if not requests:
                continue
            [request] = requests
            own = CaseLimit(**request["own"])
            run = Run(**{**request, "command": tuple(request["command"]), "own": own})
            ended = self._run(run, dict(zip(FILES, files, strict=False)))
            for file in files:
                os.close(file)
            _empty(run_directory(self._directory))
            self._control.sendall(_line(asdict(ended)))

    def _run(self, run: Run, files: Mapping[str, int]) -> Ended:
        place = (build_directory if run.build else run_directory)(self._directory)
        rules = landlock.program_ruleset(place, [*self._readable, build_directory(self._directory)])
        own_end, program_end = socket.socketpair()
        confinement = Confinement(
            self._settings,
            cpu_limit(run.seconds),
            rules,
            self._filter,
            program_end if self._asks else None,
            os.getpid(),
        )
        clock = _Clock(run.seconds, time.monotonic(), self._own_limit(run))
        pid = os.fork()
        if pid == 0:
            become(Started(run.kind, run.command, run.seed, place, files), confinement)
        program_end.close()
        if rules is not None:
            os.close(rules)
        lead_group(pid)
        with own_end:
            limit = self._watch(pid, place, own_end, clock, files)
        # Read while its processes are still there.
        own_seconds = None if run.own.seconds is None else clock.own.own.look()
        cpu, status = end_group(pid)
        code = None if status is None else os.waitstatus_to_exitcode(status)
        if limit is None and code == -signal.SIGXCPU:
            limit = CaseResult.TIMEOUT
        if limit is None and self._printed(files) > self._settings.output_size:
            limit = CaseResult.OUTPUT
        limited = limit is CaseResult.TIMEOUT and clock.limited
        seconds = time.monotonic() - clock.started
        return Ended(limit, code, seconds, cpu, own_seconds, limited, limit is None and clock.starved)

    def _own_limit(self, run: Run) -> OwnLimit:
        """Limits the program that is started next. One whose functions are called waits for the case runner, which may wait for a CPU."""
        self._slowdown = self._slowdown or Slowdown(run.own.slowdown)
        partner = self._case_runner if run.kind == SERVED else None
        own = OwnTime(Processes(os.getpid(), counted=self._counted, below=True, partner=partner), self._slowdown)
        return OwnLimit(own, run.seconds, run.own.seconds)

    def _watch(
        self, pid: int, place: str, own: socket.socket, clock: _Clock, files: Mapping[str, int]
    ) -> CaseResult | None:
        """Waits until the program's first process ends, or it is to be ended: what for, or None. `own` brings its listener."""
        pidfd = os.pidfd_open(pid)
        listener: int | None = None
        poll = select.poll()
        for fd in (pidfd, self._control.fileno(), *([own.fileno()] if self._asks else [])):
            poll.register(fd, select.POLLIN)
        initial_files = {(status.st_dev, status.st_ino) for status in map(os.fstat, files.values())}
        now = clock.started
        look_at, look_at_files = now, now + _WRITTEN_SECONDS
        look_at_own = now + min(clock.own.first_look(), _OWN_SECONDS)
        waited = waited_here()
        # How many there are at most: some that have started since they were counted may have ended.
        threads = 1
        try:
            while True:
                events = dict(poll.poll(1e3 * max(look_at - now, 0.0)))
                if listener in events and not events[listener] & select.POLLIN:
                    poll.unregister(listener)  # nobody is left who could ask
                    del events[listener]
                ready = events.keys()
                if pidfd in ready:
                    # Processes that it has started end now.
                    return self._too_much(place, initial_files, [])
                if self._control.fileno() in ready:
                    # The program is to be stopped, or the case runner is gone.
                    self._control.recv(_MESSAGE_BYTES)
                    return None
                if own.fileno() in ready:
                    poll.unregister(own.fileno())
                    listener = next(iter(socket.recv_fds(own, 1, 1)[1]), None)
                    if listener is not None:
                        poll.register(listener, select.POLLIN)
                now = time.monotonic()
                if listener is not None and listener in ready:
                    if threads >= self._settings.processes:
                        threads = self._tree().threads
                    if threads >= self._settings.processes:
                        return CaseResult.PROCESSES
                    let_start(listener)
                    threads += 1
                # A program that starts a process or thread waits for this process, which may wait for a CPU.
                before, waited = waited, waited_here()
                if listener is not None and listener in ready:
                    clock.own.own.excused += waited - before
                if now < look_at:
                    continue
                tree = self._tree()
                threads = tree.threads
                look_at = now + (_FIRST_INTERVAL if now < clock.started + _SHORT_RUN_SECONDS else _INTERVAL)
                if tree.cpu_seconds >= clock.seconds:
                    return CaseResult.TIMEOUT
                if now >= look_at_own:
                    if clock.own.passed():
                        clock.limited = clock.own.limited
                        return CaseResult.TIMEOUT
                    look_at_own = now + min(clock.own.remaining(), _OWN_SECONDS)
                if now >= clock.started + WALL_LIMIT_FACTOR * clock.seconds:
                    clock.starved = True
                    return None
                if tree.threads > self._settings.processes:
                    return CaseResult.PROCESSES
                if memory(tree, self._settings.memory) > self._settings.memory:
                    return CaseResult.MEMORY
                if self._printed(files) > self._settings.output_size:
                    return CaseResult.OUTPUT
                if now >= look_at_files:
                    look_at_files = now + _WRITTEN_SECONDS
                    if (limit := self._too_much(place, initial_files, tree.pids)) is not None:
                        return limit
        finally:
            os.close(pidfd)
            if listener is not None:
                os.close(listener)

    def _printed(self, files: Mapping[str, int]) -> int:
        return max(os.fstat(files[name]).st_size for name in ("stdout", "stderr"))

    def _tree(self) -> Tree:
        return descendants(self._settings.processes)

    def _too_much(self, place: str, initial_files: set[tuple[int, int]], pids: Sequence[int]) -> CaseResult | None:
        return CaseResult.FILES if written(place, pids, initial_files) > self._settings.file_size else None


@dataclass(slots=True)
class _Clock:
    """A case's limits, and when it began, of the monotonic clock. It says whether a learned limit, or want of a CPU, has ended it."""

    seconds: float
    started: float
    own: OwnLimit
    limited: bool = False
    starved: bool = False


def paths_outside(hidden: Collection[str]) -> list[str]:
    """Returns paths that together hold all files that there are now, but those below the `hidden` directories."""
    real = [os.path.realpath(path) for path in hidden]
    paths, pending = [], ["/"]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                path = os.path.realpath(entry.path)
                if any(f"{path}/".startswith(f"{each}/") for each in real):
                    continue
                if not any(each.startswith(f"{path}/") for each in real):
                    paths.append(entry.path)
                elif path == entry.path:
                    pending.append(path)
    return paths


def _empty(directory: str) -> None:
    """Makes it as it was at first. No process may be left in it."""
    try:
        if os.stat(directory).st_mode & 0o777 == 0o700 and not os.listdir(directory):
            return
    except OSError:
        pass
    remove_tree(directory)
    os.mkdir(directory, 0o700)


# --- The program's own process -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """Describes a program to start: `files` are descriptors by the names in `FILES`, `place` is its working directory."""

    kind: str
    command: tuple[str, ...]
    seed: int
    place: str
    files: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Confinement:
    """Holds the limits of every process of the program, its Landlock rules (None without Landlock) and filter, and the launcher's pid.

    `questions` carries to the launcher the descriptor by which the kernel asks about new processes; None where the kernel can't ask.
    """

    settings: SandboxSettings
    cpu_seconds: int
    rules: int | None
    calls: Filter
    questions: socket.socket | None
    launcher: int


def preload() -> None:
    """Imports what programs use, so that forks have it."""
    for name in _IMPORTS:
        __import__(name)
    __import__("threading")
    __import__("traceback")


def become(started: Started, confinement: Confinement) -> NoReturn:
    """Runs the program in this process, which its launcher has just forked. Never returns."""
    code = 1
    try:
        source = _read(started.files["source"])
        _arrange_files(started.files)
        _confine(confinement)
        os.closerange(_PEER + ("peer" in started.files), os.sysconf("SC_OPEN_MAX"))
        _environment(started.place)
        random.seed(started.seed)
        sys.set_int_max_str_digits(DIGITS)
        if started.kind == COMMAND:
            _execute(started.command)
        elif started.kind == SERVED:
            code = _exit_code(lambda: _be_called(source))
        else:
            code = _exit_code(lambda: _run_script(source))
    finally:
        os._exit(code)


def _read(source: int) -> bytes:
    with open(source, "rb", closefd=False) as file:
        file.seek(0)
        return file.read()


def _arrange_files(files: Mapping[str, int]) -> None:
    """Sets up standard streams and, if there is one, the connection to the case runner."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.dup2(files[name], number)
    os.lseek(0, 0, os.SEEK_SET)
    if "peer" in files:
        os.dup2(files["peer"], _PEER, False)


def _confine(confinement: Confinement) -> None:
    """Confines this process, for good. If the kernel refuses anything, raises an error or ends the process: then nothing is run."""
    settings = confinement.settings
    os.setpgid(0, 0)
    call, arguments = prctl.dying_with_parent()
    if call(*arguments) or os.getppid() != confinement.launcher:
        os._exit(1)
    # The launcher has to read its memory usage. With Landlock no other program can; without Landlock none may, and the usage is less exact.
    prctl.show_memory()
    die_first()
    if confinement.rules is None:
        prctl.hide_memory()
    data = data_bytes()
    bounds = {
        resource.RLIMIT_CPU: (confinement.cpu_seconds, confinement.cpu_seconds + 1),
        resource.RLIMIT_DATA: 2 * (data + settings.memory,),
        resource.RLIMIT_FSIZE: 2 * (max(settings.file_size, settings.output_size + 1),),
        resource.RLIMIT_NPROC: 2 * (_PROCESSES_OF_USER,),
        resource.RLIMIT_CORE: (0, 0),
    }
    for kind, (soft, hard) in bounds.items():
        resource.setrlimit(kind, allowed_limits(kind, soft, hard))
    for call, arguments in landlock.restriction(confinement.rules):
        if call(*arguments):
            raise OSError("Landlock refused its rules")
    if confinement.questions is None:
        confinement.calls.install(os.getpid())
    else:
        # The program keeps no copy of this descriptor.
        socket.send_fds(confinement.questions, [b"a"], [confinement.calls.install_asking(os.getpid())])
    # Only now: the kernel lets nobody send a file while its user has more of them under way than this.
    resource.setrlimit(resource.RLIMIT_NOFILE, allowed_limits(resource.RLIMIT_NOFILE, _OPEN_FILES, _OPEN_FILES))


def _environment(place: str) -> None:
    path = os.environ.get("PATH", os.defpath)
    os.environ.clear()
    os.environ.update(
        PATH=path, HOME=place, TMPDIR=place, LANG="C.UTF-8", PYTHONHASHSEED="0", PYTHONDONTWRITEBYTECODE="1"
    )
    os.chdir(place)


def _execute(command: tuple[str, ...]) -> None:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        # Python ignores these signals, and programs expect them.
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error}".encode())


def _streams() -> None:
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0)), "utf-8", "replace")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w")), "utf-8", "surrogateescape")
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w")), "utf-8", "backslashreplace", line_buffering=True
    )
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]


def _module(name: str) -> ModuleType:
    module = type(sys)(name)
    module.__file__ = f"{name}.py" if name != "__main__" else "main.py"
    sys.modules[name] = module
    return module


def _run_script(source: bytes) -> None:
    module = _module("__main__")
    sys.argv = ["main.py"]
    exec(compile(source, "main.py", "exec", dont_inherit=True), vars(module))  # noqa: S102 - what this process is for


def _be_called(source: bytes) -> None:
    """Runs the program as the module `solution`, then does what the case runner asks for."""
    from longboat_graders.frames import MAX_FRAME_BYTES
    from longboat_graders.remote import Peer, ProgramGone

    module = _module("solution")
    vars(module).update(_assumed())
    exec(compile(source, "solution.py", "exec", dont_inherit=True), vars(module))  # noqa: S102 - what this process is for
    connection = Peer(socket.socket(fileno=_PEER), MAX_FRAME_BYTES)
    connection.export(_Functions(module))
    connection.send({"ready": True})
    try:
        connection.serve()
    except ProgramGone:
        return


class _Functions:
    """The functions of a program, by name: its own, or methods of its class `Solution`, each on a new object."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if hasattr(self._module, name):
            return getattr(self._module, name)
        if hasattr(self._module, "Solution") and hasattr(self._module.Solution, name):
            return getattr(self._module.Solution(), name)
        raise AttributeError(f"the program has no function {name!r}")


def _assumed() -> dict[str, Any]:
    names: dict[str, Any] = {}
    for name in _STAR_IMPORTS:
        module = sys.modules[name]
        public = getattr(module, "__all__", None) or [each for each in vars(module) if not each.startswith("_")]
        names |= {each: getattr(module, each) for each in public}
    names["pow"] = pow
    return names | {name: sys.modules[name] for name in _IMPORTS}


def _exit_code(run: Callable[[], None]) -> int:
    """Does what the interpreter does around a program: shows its error, waits for its threads, flushes its output."""
    import atexit
    import threading
    import traceback

    code = 0
    _streams()
    try:
        run()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        if code and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - whatever a program may raise
        traceback.print_exc(limit=-3)
        code = 1
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001
        code = code or 1
    return code & 0xFF
