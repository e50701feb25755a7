"""Turns a forked process into a response's program: confines it, for good, and runs the program.

How its grade is found out is no business of this process.
"""

from __future__ import annotations

import io
import os
import random
import resource
import signal
import socket
import sys
from dataclasses import dataclass

from longboat_runtime import prctl
from longboat_runtime.reward.graders import landlock

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any, NoReturn

    from longboat_runtime.reward.function import SandboxSettings
    from longboat_runtime.reward.graders.seccomp import Filter

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
class Started:
    """Describes a program to start: `files` are descriptors by the names in `launcher.FILES`, `place` is its working directory."""

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
    _die_first()
    if confinement.rules is None:
        prctl.hide_memory()
    data = _data_bytes()
    bounds = {
        resource.RLIMIT_CPU: (confinement.cpu_seconds, confinement.cpu_seconds + 1),
        resource.RLIMIT_DATA: 2 * (data + settings.memory,),
        resource.RLIMIT_FSIZE: 2 * (max(settings.file_size, settings.output_size + 1),),
        resource.RLIMIT_NPROC: 2 * (_PROCESSES_OF_USER,),
        resource.RLIMIT_NOFILE: 2 * (_OPEN_FILES,),
        resource.RLIMIT_CORE: (0, 0),
    }
    for kind, (soft, hard) in bounds.items():
        allowed = resource.getrlimit(kind)[1]
        within = (soft, hard) if allowed == resource.RLIM_INFINITY else (min(soft, allowed), min(hard, allowed))
        resource.setrlimit(kind, within)
    for call, arguments in landlock.restriction(confinement.rules):
        if call(*arguments):
            raise OSError("Landlock refused its rules")
    if confinement.questions is None:
        confinement.calls.install(os.getpid())
    else:
        # The program keeps no copy of this descriptor.
        socket.send_fds(confinement.questions, [b"a"], [confinement.calls.install_asking(os.getpid())])


def _die_first() -> None:
    """Makes the kernel end a program rather than a case runner if memory is short in spite of all limits."""
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def _data_bytes() -> int:
    """Returns the bytes of this process' data and stack, about what RLIMIT_DATA counts: it is a fork of one that holds something."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[5]) * resource.getpagesize()


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
    from longboat_runtime.reward.graders.frames import MAX_FRAME_BYTES
    from longboat_runtime.reward.graders.remote import Peer, ProgramGone

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
