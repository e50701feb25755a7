"""Finds changes that a grade leaves in a process that stays for the next one, and removes directories that grades leave.

A process in which a change is found grades no more; another one takes its place. Nothing here asks what a change is good for: a
function that counts or caches across grades would score differently in another order.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` makes enumerations of, slowly
import atexit
import ctypes
import gc
import os
import resource
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from operator import is_

from longboat_graders.watch import Origins

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType
    from typing import Any

# By how much the memory of a process may grow over its grades, in bytes.
MAX_GROWTH = 128 * 2**20
# Modules whose names every reward function may rely on. Those that aren't installed (the function's own) are watched too.
_WATCHED_MODULES = ("builtins", "json", "json.decoder", "json.encoder", "math", "operator", "os", "random", "re", "sys")
_OWN_MODULES = (
    "longboat_graders.adapters",
    "longboat_graders.result",
    "__main__",  # the zygote's module
)
_CONTAINERS = (dict, list, set, bytearray)
_RLIMITS = (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)
_SIGNALS = range(1, 32)
_TIMERS = (_signal.ITIMER_REAL, _signal.ITIMER_VIRTUAL, _signal.ITIMER_PROF)
_ENDING_LOOKS, _ENDING_SECONDS = 10, 0.001
_TASKS, _FILES, _MEMORY = "/proc/self/task", "/proc/self/fd", "/proc/self/statm"
# Where CPython has a dict's version (PEP 509, up to 3.13), and where a class' namespace, as seen from outside, has its dict; in bytes.
_VERSION_AT, _VIEWED_AT = 24, 16


class Baseline:
    """This process as it was before its first grade. What is compared, and with what, is held here, where no name is looked up."""

    def __init__(self, origins: Origins) -> None:
        own = [module for module in list(sys.modules.values()) if not origins.installed_module(module)]
        watched = [sys.modules[name] for name in (*_WATCHED_MODULES, *_OWN_MODULES) if name in sys.modules]
        scopes = [vars(module) for module in (*watched, *own)] + [*_scopes_within(own)]
        versions = _versions_work()
        self._bindings = [_Bindings(scope, versions=versions) for scope in scopes]
        self._modules = _Bindings(sys.modules, versions=versions, grows=True)
        self._sizes = [(container, len(container)) for container in _containers(scopes[len(watched) :])]
        tasks_there, files, self._statm = (
            os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in (_TASKS, _FILES, _MEMORY)
        )
        self._page = resource.getpagesize()
        # Functions are bound here, before graded code can replace them.
        self._checks: list[tuple[str, Callable[[], Any], Any]] = []
        fstat, listdir, getitimer, getsignal, getrlimit = (
            os.fstat,
            os.listdir,
            _signal.getitimer,
            _signal.getsignal,
            resource.getrlimit,
        )
        at_first, sleep = fstat(tasks_there).st_nlink, time.sleep

        def tasks() -> int:
            """Returns the number of links of the threads' directory, which grows with each thread.

            Waits a moment if it is more than at first: in the kernel a thread may outlast its Python thread.
            """
            for _ in range(_ENDING_LOOKS):
                count = fstat(tasks_there).st_nlink
                if count <= at_first:
                    break
                sleep(_ENDING_SECONDS)
            return count

        self._check("a thread", tasks)
        # Linux counts open files since 6.2; listing them takes several times as long.
        counted = fstat(files).st_size > 0
        self._check("an open file", (lambda: fstat(files).st_size) if counted else (lambda: len(listdir(_FILES))))
        self._check("another working directory", os.getcwd)
        self._check("a file", lambda: listdir("."))
        self._check("a changed environment", os.environ._data.copy)  # type: ignore[attr-defined]
        self._check("another umask", partial(os.umask, 0o077))
        self._check("a signal handler", lambda: [*map(getsignal, _SIGNALS)])
        self._check("a blocked signal", partial(_signal.pthread_sigmask, _signal.SIG_BLOCK, ()))
        self._check("a timer", lambda: [*map(getitimer, _TIMERS)])
        self._check("a function to be called at exit", atexit._ncallbacks)
        self._check("another limit", lambda: [*map(getrlimit, _RLIMITS)])
        for name, ask in (
            ("a trace function", sys.gettrace),
            ("a profile function", sys.getprofile),
            ("another recursion limit", sys.getrecursionlimit),
            ("the garbage collector switched", gc.isenabled),
            ("other garbage collector thresholds", gc.get_threshold),
        ):
            self._check(name, ask)
        for name, items in (
            ("sys.path", sys.path),
            ("sys.meta_path", sys.meta_path),
            ("sys.path_hooks", sys.path_hooks),
            ("gc.callbacks", gc.callbacks),
        ):
            self._check(f"a changed {name}", partial(list, items))
        self._resident = self._resident_pages()

    def change(self) -> str | None:
        """Names the first change found since the baseline, as an object of "it left"; None without one."""
        for name, ask, expected in self._checks:
            if ask() != expected:
                return name
        for bindings in self._bindings:
            if bindings.changed():
                return f"a changed {bindings.first_changed()}"
        for container, size in self._sizes:
            if len(container) != size:
                return "something in a global variable"
        if self._modules.changed():
            return "another module in sys.modules"
        growth = (self._resident_pages() - self._resident) * self._page
        return f"{growth >> 20} MiB more memory in use" if growth > MAX_GROWTH else None

    def _check(self, name: str, ask: Callable[[], Any]) -> None:
        self._checks.append((name, ask, ask()))

    def _resident_pages(self) -> int:
        return int(os.pread(self._statm, 64, 0).split()[1])


class _Bindings:
    """Remembers what names are bound to in a dict, or in a class's namespace. One that `grows` may have more names, after those it has.

    A dict whose version hasn't changed isn't looked into: that would count references to its values, in memory of theirs which is in
    no cache and, until then, shared with the zygote. With torch there are three thousand modules alone, and looking into all dicts takes
    0.1 ms a grade more, or 0.4 ms if others have used the CPU's caches since the last grade.
    """

    __slots__ = ("_grows", "_names", "_scope", "_values", "_version", "_version_now")

    def __init__(self, scope: Mapping[str, Any], *, versions: bool, grows: bool = False) -> None:
        self._scope, self._grows, self._names, self._values = scope, grows, tuple(scope), tuple(scope.values())
        self._version_now = _version_of(scope) if versions else None
        self._version = -1 if self._version_now is None else self._version_now.value

    def changed(self) -> bool:
        """Whether anything is bound otherwise than at first."""
        now = self._version_now
        version = -1 if now is None else now.value
        if version == self._version and now is not None:
            return False
        scope, names = self._scope, self._names
        as_many = len(scope) == len(names) or (self._grows and len(scope) > len(names))
        if as_many and all(map(is_, scope.values(), self._values)) and all(map(is_, scope, names)):
            self._version = version
            return False
        return True

    def first_changed(self) -> str:
        """Names the first binding that isn't as it was, with its module if that is known; the module alone if only the order changed."""
        scope, names = self._scope, self._names
        place = scope.get("__name__", scope.get("__module__", "object"))
        place = place if type(place) is str else "object"
        before = dict(zip(names, self._values, strict=True))
        for name in [*scope, *names]:
            if name not in before or name not in scope or scope[name] is not before[name]:
                return f"{place}.{name}"
        return place


def _version_of(scope: Mapping[str, Any]) -> ctypes.c_uint64:
    """Returns a view of the version of a dict, or of the one behind a class' namespace; it follows changes.

    A dict that changes gets a version that none has had before. This works only where `_versions_work` says so.
    """
    address = id(scope)
    if not isinstance(scope, dict):
        address = ctypes.c_size_t.from_address(address + _VIEWED_AT).value
    return ctypes.c_uint64.from_address(address + _VERSION_AT)


def _versions_work() -> bool:
    """Whether this Python has versions of dicts where they are looked for, and changes them with the dict."""
    if sys.implementation.name != "cpython":
        return False

    class Probe:
        value = 0

    probe, plain = Probe(), {"value": 0}
    probe.value = 0
    scopes = (plain, vars(probe), vars(Probe))
    changes = (
        partial(plain.update, value=1),
        partial(setattr, probe, "value", 1),
        partial(setattr, Probe, "value", 1),
    )
    for scope, change in zip(scopes, changes, strict=True):
        version = _version_of(scope)
        before, unchanged = version.value, version.value
        change()
        if before != unchanged or before == version.value:
            return False
    return True


def _scopes_within(modules: Iterable[ModuleType]) -> Iterable[Mapping[str, Any]]:
    """Yields the attributes of the global classes and functions that each module defines, and of its global objects of such classes."""
    for module in modules:
        for value in list(vars(module).values()):
            from_here = module.__name__ in (type(value).__module__, getattr(value, "__module__", None))
            if from_here and isinstance(getattr(value, "__dict__", None), Mapping):
                yield value.__dict__


def _containers(scopes: Iterable[Mapping[str, Any]]) -> Iterable[Any]:
    """Yields mutable containers that are bound in `scopes`, or are defaults of positional parameters of functions bound there."""
    for scope in scopes:
        for value in scope.values():
            if isinstance(value, _CONTAINERS):
                yield value
            else:
                defaults = (*(getattr(value, "__defaults__", None) or ()),)
                yield from (default for default in defaults if isinstance(default, _CONTAINERS))


def remove_tree(root: str) -> None:
    """Removes a directory whose content may be made to prevent that: too deep for recursion or a path, or without permissions.

    Every directory found is moved to the top under a short name before it is looked into, so no path grows. Symbolic links
    are removed, never followed. Nobody may be writing there any more.
    """
    os.chmod(root, 0o700)
    prefix = os.urandom(8).hex()
    directories = [root]
    for directory in directories:
        with os.scandir(directory) as entries:
            content = list(entries)
        for entry in content:
            if entry.is_dir(follow_symlinks=False):
                os.chmod(entry.path, 0o700)
                moved = f"{root}/{prefix}-{len(directories)}"
                os.rename(entry.path, moved)
                directories.append(moved)
            else:
                os.unlink(entry.path)
    for directory in reversed(directories):
        os.rmdir(directory)


def sweep(scratch: str) -> None:
    """Removes the directories that children of a zygote before this one have left: it died, and they with it.

    What those have started may end a moment later (see `socket_server.SocketServer`); a directory in which it still writes is left to the next.
    """
    for name in os.listdir(scratch):
        with suppress(OSError):
            remove_tree(f"{scratch}/{name}")
