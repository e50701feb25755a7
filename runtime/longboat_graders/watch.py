"""Watches a process that grades one sample after the other: no code that came with a sample may run in it.

The rule is who asks. Whatever is in an installed file (the standard library, site-packages) may run; code that isn't has to be
compiled, executed, unpickled or built from its parts before it can run, and Python raises an audit event before each of these (PEP 578, and
the table of audit events in the library's documentation). An installed package may evaluate expressions, as sympy does in every
grade, if they are arithmetic: names, numbers, operators, calls. What the standard library does is judged by who called it.
"""

from __future__ import annotations

import ast
import builtins
import opcode
import os
import sys

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import CodeType, FrameType, ModuleType
    from typing import Any

# Refused unless an installed module does it while it is imported.
_REFUSED = {
    "marshal.loads": "unmarshals code",
    "pickle.find_class": "unpickles {1} of {0}",
    "code.__new__": "builds code",
    "function.__new__": "builds a function",
    "os.fork": "starts a process",
    "os.forkpty": "starts a process",
    "os.exec": "starts a program",
    "os.posix_spawn": "starts a program",
    "os.system": "starts a program",
    "subprocess.Popen": "starts a program",
    "cpython.PyInterpreterState_New": "starts another interpreter",
    "cpython.run_command": "runs a program",
    "cpython.run_file": "runs a program",
    "cpython.run_interactivehook": "runs a program",
    "cpython.run_module": "runs a program",
    "cpython.run_startup": "runs a program",
    "cpython.run_stdin": "runs a program",
}
# Refused unless an installed package does it: what could look at, or change, the frames and objects of other grades.
_FOR_PACKAGES = {
    "gc.get_objects": "looks at all objects",
    "gc.get_referrers": "looks at all objects",
    "gc.get_referents": "looks at all objects",
    "sys.settrace": "traces calls",
    "sys.setprofile": "traces calls",
    "sys._current_frames": "looks at other threads",
    "sys.addaudithook": "adds an audit hook",
}
_JUDGED_EVENTS = frozenset((*_REFUSED, *_FOR_PACKAGES, "compile", "exec", "import", "object.__setattr__"))

_IMPORTING = "_call_with_frames_removed"
_BOOTSTRAP = "<frozen importlib._bootstrap>"
_BOOTSTRAP_EXTERNAL = "<frozen importlib._bootstrap_external>"

# Builtins that compute something and do nothing. Others may not be named in an expression that isn't written in a file.
_HARMLESS = frozenset(
    [
        "abs",
        "all",
        "any",
        "bin",
        "bool",
        "bytes",
        "chr",
        "complex",
        "dict",
        "divmod",
        "enumerate",
        "filter",
        "float",
        "frozenset",
        "hash",
        "hex",
        "int",
        "isinstance",
        "len",
        "list",
        "map",
        "max",
        "min",
        "oct",
        "ord",
        "pow",
        "range",
        "repr",
        "reversed",
        "round",
        "set",
        "slice",
        "sorted",
        "str",
        "sum",
        "tuple",
        "zip",
        "True",
        "False",
        "None",
        "Ellipsis",
        "NotImplemented",
    ]
)
_HARMFUL = frozenset(dir(builtins)) - _HARMLESS
# Instructions that arithmetic is made of; no attributes, no imports, no `global`, no classes. Versions of Python differ in the rest.
_ARITHMETIC = frozenset(
    code
    for name, code in opcode.opmap.items()
    if name.startswith(
        (
            *(
                "BINARY_",
                "BUILD_",
                "CALL",
                "COMPARE_",
                "CONTAINS_",
                "FOR_ITER",
                "GET_ITER",
                "END_FOR",
                "IS_",
                "JUMP_",
                "KW_",
            ),
            *("LIST_", "LOAD_CLOSURE", "LOAD_CONST", "LOAD_DEREF", "LOAD_FAST", "LOAD_GLOBAL", "LOAD_NAME", "MAKE_"),
            *(
                "COPY",
                "DICT_",
                "NOP",
                "POP_",
                "PRECALL",
                "PUSH_NULL",
                "RESUME",
                "RETURN_",
                "SET_ADD",
                "SET_UPDATE",
                "SWAP",
            ),
            *(
                "STORE_FAST",
                "STORE_NAME",
                "UNARY_",
                "UNPACK_",
                "EXTENDED_ARG",
                "CACHE",
                "MAP_ADD",
                "MAKE_CELL",
                "TO_BOOL",
            ),
            *("SET_FUNCTION_ATTRIBUTE", "COPY_FREE_VARS", "FORMAT_", "CONVERT_VALUE"),
        )
    )
)
_STAR_IMPORT = _ARITHMETIC | {
    code for name, code in opcode.opmap.items() if name in ("IMPORT_NAME", "IMPORT_STAR", "CALL_INTRINSIC_1")
}
_CALLS = frozenset(
    code for name, code in opcode.opmap.items() if name.startswith(("CALL", "PRECALL")) and "INTRINSIC" not in name
)


class Origins:
    """Tells where code comes from, by the name of its file. Made before the reward function is loaded, which may change `sys.path`."""

    def __init__(self, own_directories: Iterable[str]) -> None:
        self._packages = _directories(
            path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")
        )
        self._library = _directories([os.path.dirname(os.__file__)])
        self._own_directories = _directories(own_directories)
        self._known: dict[str, str | None] = {}

    def origin_of(self, file: str) -> str | None:
        """Returns `package`, `library` (the standard one, and this package, which do what others ask for), or None: not installed."""
        if file.startswith("<frozen "):
            return "library"
        if not file.startswith("/"):
            return None
        if file not in self._known:
            self._known[file] = self._find(os.path.normpath(file))
        return self._known[file]

    def installed_module(self, module: ModuleType) -> bool:
        """Whether the module comes from an installed file, or from none, as built-in ones do."""
        file = getattr(module, "__file__", None)
        return not isinstance(file, str) or self.origin_of(file) is not None

    def _find(self, file: str) -> str | None:
        if file.startswith(self._own_directories):
            return "library"
        if file.startswith(self._packages):
            return "package"
        return "library" if file.startswith(self._library) else None


class Watch:
    """An audit hook, which can't be removed. `refuse` is called with the reason, as a predicate of "a grade", and must not return.

    `bottom` is the code of the function that all grades are run by.
    """

    def __init__(self, origins: Origins, bottom: CodeType, refuse: Callable[[str], None]) -> None:
        self._origins, self._bottom, self._refuse = origins, bottom, refuse
        self._parsing = ast.parse.__code__

    def start(self) -> None:
        """Starts to watch, for good."""
        judge, judged, frame = self._judge, _JUDGED_EVENTS, sys._getframe

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if event in judged or event.startswith("ctypes."):
                judge(event, arguments, frame(1))

        sys.addaudithook(hook)

    def _judge(self, event: str, arguments: tuple[Any, ...], frame: FrameType) -> None:
        what = self.refusal(event, arguments, frame)
        if what is not None:
            self._refuse(what)

    def refusal(self, event: str, arguments: tuple[Any, ...], frame: FrameType) -> str | None:
        """Says what the grade does that it may not; None if it may. `frame` is the one that raised the event."""
        what: str | None
        match event:
            case "compile" if frame.f_code is self._parsing:
                return None  # to a tree, which isn't code yet
            case "compile":
                what = "compiles code"
            case "exec":
                if frame.f_code.co_name == _IMPORTING and frame.f_code.co_filename == _BOOTSTRAP:
                    return self._refused_import(arguments[0], frame)
                what = "executes code"
            case "import":
                file = arguments[1]
                what = f"imports {file}" if isinstance(file, str) and self._origins.origin_of(file) is None else None
            case "object.__setattr__":
                what = "replaces the code of a function" if arguments[1] == "__code__" else None
            case "marshal.loads" if frame.f_code.co_filename == _BOOTSTRAP_EXTERNAL:
                return None  # a module, which is judged when it is executed
            case _:
                what = _REFUSED.get(event) or _FOR_PACKAGES.get(event) or "calls foreign functions (ctypes)"
                what = what.format(*arguments) if event == "pickle.find_class" else what
        return None if what is None else self._offence(event, arguments, what, frame)

    def _offence(self, event: str, arguments: tuple[Any, ...], what: str, frame: FrameType) -> str | None:
        asker, place = self._asker(frame)
        if asker == "import":
            return None
        if asker == "package" and place is not None:
            if event == "compile" or event in _FOR_PACKAGES:
                return None
            if event == "exec" and self._arithmetic(arguments[0], place):
                return None
            if self._asker(place, past_packages=True)[0] == "import":
                return None
        where = "" if place is None else f" ({place.f_code.co_filename} line {place.f_lineno})"
        return what + where

    def _asker(self, frame: FrameType, *, past_packages: bool = False) -> tuple[str | None, FrameType | None]:
        """Finds who is behind the event, and their frame: an installed `package`, the `import` of anything installed, or None: the rest.

        The frame is None if the walk finds nobody.
        The walk ends at the first package, since stacks such as sympy's are deep. `past_packages` asks for whom a package works.
        """
        caller: FrameType | None = frame
        while caller is not None and caller.f_code is not self._bottom:
            origin = self._origins.origin_of(caller.f_code.co_filename)
            if origin is None:
                return None, caller
            if caller.f_code.co_name == "<module>" and _imported(caller):
                return "import", caller
            if origin == "package" and not past_packages:
                return "package", caller
            caller = caller.f_back
        return None, None

    def _refused_import(self, code: Any, frame: FrameType) -> str | None:
        """Says that a module is imported that isn't installed, which a grade may not do; None if it is installed.

        Both names of its file count: a `.pyc` may lie about its own.
        """
        loading = frame.f_back
        module = loading.f_locals.get("module") if loading is not None else None
        file = getattr(getattr(module, "__spec__", None), "origin", None) or code.co_filename
        installed = self._origins.origin_of(code.co_filename) is not None and self._origins.origin_of(file) is not None
        return None if installed else f"imports {file}"

    def _arithmetic(self, code: CodeType, asker: FrameType | None) -> bool:
        if is_arithmetic(code):
            return True
        # `from sympy import *`, executed by sympy.
        name = "" if asker is None else str(asker.f_globals.get("__name__", ""))
        operations = frozenset(code.co_code[::2])
        own = all(imported.partition(".")[0] == name.partition(".")[0] for imported in code.co_names)
        return own and operations <= _STAR_IMPORT and not operations & _CALLS and is_plain(code)


def is_arithmetic(code: CodeType) -> bool:
    """Whether code, and all functions defined in it, only computes with names, numbers and operators, and calls.

    It has no attributes, imports or assignments but to its own names, and doesn't name a builtin that could do something.
    """
    return _ARITHMETIC.issuperset(code.co_code[::2]) and is_plain(code)


def is_plain(code: CodeType) -> bool:
    """Whether no name in it is harmful, and functions in it are arithmetic."""
    names = code.co_names
    return (
        _HARMFUL.isdisjoint(names)
        and not any(name.startswith("__") for name in names)
        and all(is_arithmetic(constant) for constant in code.co_consts if isinstance(constant, type(code)))
    )


def _imported(frame: FrameType) -> bool:
    """Whether a module's own frame was started by an import, not by something that runs files."""
    caller = frame.f_back
    return (
        caller is not None and caller.f_code.co_name == _IMPORTING and caller.f_code.co_filename.startswith("<frozen ")
    )


def _directories(paths: Iterable[str]) -> tuple[str, ...]:
    """Returns the prefixes of all files below `paths`, as named and as they really are."""
    return tuple({f"{form(path)}/" for path in paths if path for form in (os.path.normpath, os.path.realpath)})
