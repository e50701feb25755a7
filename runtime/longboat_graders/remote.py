"""Calls between a case runner and a program in another process: tests run in the case runner, and only data comes back.

Both ends speak frames over a socket. A request is {call, method, arguments, named} or {get, name}, an answer {value, changed} or {raised}.
Requests nest: a program may call what the case runner has passed to it as an argument, while the case runner waits for its answer.

What a program returns can't run code in the case runner. Numbers, texts and containers, numpy's included, travel by value. Anything else
stays where it is, and the case runner gets a `Remote` that stands for it; for an exception class it makes one of its own.
"""

from __future__ import annotations

import builtins
import socket

from longboat_graders.frames import FrameBuffer, FrameError, encode

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

_READ_BYTES = 64 * 1024
# The number of the program's module among its objects.
MODULE = 0
# Operators that are handed on to an object that the test has made itself, by calling a class.
_OPERATORS = (
    "len",
    "getitem",
    "setitem",
    "delitem",
    "contains",
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "neg",
    "abs",
)


class ProgramGone(BaseException):
    """The program has ended, or said what no program of ours says. No `except Exception` of a test swallows it."""


class Peer:
    """One end. `gone` says that ProgramGone was raised; it may have been caught."""

    def __init__(self, connection: socket.socket, most_bytes: int) -> None:
        self._connection = connection
        self._buffer = FrameBuffer(most_bytes)
        self._messages: list[tuple[dict[str, Any], bytes]] = []
        self.gone = False
        self._exported: list[Any] = []
        self._numbers: dict[int, int] = {}

    def export(self, value: Any) -> int:
        """Returns the number by which the other end refers to `value`."""
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._exported)
            self._exported.append(value)
        return number

    def send(self, message: Mapping[str, Any]) -> None:
        """Raises ProgramGone if the other end is gone."""
        try:
            self._connection.sendall(encode(message))
        except OSError as error:
            raise self._is_gone(str(error)) from error

    def receive(self) -> dict[str, Any]:
        """Waits for the next message and returns it. Raises ProgramGone if the connection is over, or for what is no message."""
        while not self._messages:
            try:
                data = self._connection.recv(_READ_BYTES)
                if not data:
                    raise self._is_gone("it closed its connection")
                self._messages = self._buffer.feed(data)
            except FrameError as error:
                raise self._is_gone(f"its answer can't be read: {error}") from error
            except OSError as error:
                raise self._is_gone(str(error)) from error
        return self._messages.pop(0)[0]

    def serve(self) -> None:
        """Answers requests until the other end is gone."""
        while True:
            self.answer(self.receive())

    def answer(self, request: Mapping[str, Any]) -> None:
        """Does what is asked and says what came of it."""
        try:
            reply = self._do(request)
            frame = encode(reply)
        except ProgramGone:
            raise
        except BaseException as error:  # noqa: BLE001 - passed on to the caller
            frame = encode({"raised": self._raised(error)})
        try:
            self._connection.sendall(frame)
        except OSError as error:
            raise self._is_gone(str(error)) from error

    def _is_gone(self, why: str) -> ProgramGone:
        self.gone = True
        return ProgramGone(why)

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Asks the other end and returns its answer; its own requests are answered until that comes."""
        self.send(request)
        while True:
            message = self.receive()
            if "value" in message or "raised" in message:
                return message
            self.answer(message)

    def pack(self, value: Any) -> Any:
        """Turns a value into JSON values. Raises TypeError for what can be neither copied nor referred to."""
        kind: Any = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if kind is list:
            return [self.pack(item) for item in value]
        if kind in _CONTAINERS:
            return {_CONTAINERS[kind]: [self.pack(item) for item in value]}
        if isinstance(value, dict):
            return {"dict": [[self.pack(key), self.pack(item)] for key, item in value.items()]}
        if isinstance(value, (bytes, bytearray)):
            return {"bytes" if isinstance(value, bytes) else "bytearray": value.decode("latin-1")}
        if kind is complex:
            return {"complex": [value.real, value.imag]}
        for base in _PLAIN:
            # An instance of a subclass, such as a named tuple, travels as the plain value that it is.
            if isinstance(value, base) and not hasattr(value, "__longboat_remote__"):
                return self.pack(base(value))
        if kind.__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
            return self.pack(value.tolist())
        return self._reference(value)

    def unpack(self, value: Any) -> Any:
        """Reads what the other end's `pack` returned. Anything else may raise an error, mostly TypeError or ValueError."""
        if isinstance(value, list):
            return [self.unpack(item) for item in value]
        if not isinstance(value, dict):
            return value
        [(kind, content)] = value.items()
        if kind in _MADE_OF:
            return _MADE_OF[kind](self.unpack(item) for item in content)
        if kind == "dict":
            return {self.unpack(key): self.unpack(item) for key, item in content}
        if kind in ("bytes", "bytearray"):
            return (bytes if kind == "bytes" else bytearray)(content.encode("latin-1"))
        if kind == "complex":
            return complex(*content)
        return self._referred(kind, content)

    def _reference(self, value: Any) -> Any:
        return {"object": [self.export(value), isinstance(value, type), self._exceptions(value)]}

    def _referred(self, kind: str, content: Any) -> Any:
        if kind == "yours":
            return self._exported[content]
        if kind == "callable":
            return lambda *arguments, **named: self.call(content, "__call__", arguments, named)
        raise ValueError(f"{kind!r} is no value")

    def call(self, number: int, method: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Calls a method of the other end's object. Raises what it raises."""
        packed = [self.pack(argument) for argument in arguments]
        keywords = {name: self.pack(value) for name, value in named.items()}
        answer = self.ask({"call": number, "method": method, "arguments": packed, "named": keywords})
        value = self.result(answer)
        for index, changed in answer.get("changed", ()):
            _change(arguments[index], self.unpack(changed))
        return value

    def result(self, answer: Mapping[str, Any]) -> Any:
        """Returns the value of an answer, or raises the error that it carries."""
        if "raised" in answer:
            raise self._error(answer["raised"])
        return self.unpack(answer["value"])

    def _do(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if "get" in request:
            return {"value": self.pack(getattr(self._exported[request["get"]], request["name"]))}
        target, method = self._exported[request["call"]], request["method"]
        packed = request["arguments"]
        arguments = [self.unpack(argument) for argument in packed]
        named = {name: self.unpack(value) for name, value in request["named"].items()}
        function = target if method == "__call__" else getattr(target, method)
        value = function(*arguments, **named)
        return {"value": self.pack(value), "changed": self._changed(packed, arguments)}

    def _changed(self, packed: list[Any], arguments: list[Any]) -> list[Any]:
        """Lists [place, packed content] of each mutable container among the positional arguments that packs differently now."""
        after = [
            (index, self.pack(argument))
            for index, argument in enumerate(arguments)
            if isinstance(argument, (list, dict, set, bytearray))
        ]
        return [[index, value] for index, value in after if value != packed[index]]

    def _raised(self, error: BaseException) -> dict[str, Any]:
        kind = type(error)
        raised = {
            "kind": next(base.__name__ for base in kind.__mro__ if getattr(builtins, base.__name__, None) is base),
            "classes": self._exceptions(kind),
        }
        try:
            return {**raised, "arguments": [self.pack(value) for value in error.args]}
        except (TypeError, RecursionError):
            return {**raised, "arguments": [str(type(error))]}

    def _exceptions(self, value: Any) -> list[Any]:
        """Lists [number, name] of an exception class and each base before the first builtin one, whose name alone comes last.

        Empty for anything that is no exception class.
        """
        if not (isinstance(value, type) and issubclass(value, BaseException)):
            return []
        classes: list[Any] = []
        for base in value.__mro__:
            if getattr(builtins, base.__name__, None) is base:
                return [*classes, base.__name__]
            classes.append([self.export(base), base.__name__])
        return classes

    def _error(self, raised: Any) -> BaseException:
        return _builtin_error(raised["kind"])(*map(self.unpack, raised["arguments"]))


_PLAIN: tuple[Any, ...] = (int, float, str, tuple, list, set, frozenset)
_CONTAINERS: Mapping[Any, str] = {tuple: "tuple", set: "set", frozenset: "frozenset"}
_MADE_OF: Mapping[str, Callable[[Iterator[Any]], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}


def _builtin_error(name: Any) -> type[BaseException]:
    """Returns the builtin exception of that name, RuntimeError if there is none.

    KeyboardInterrupt becomes RuntimeError as well: pytest would end all tests for it.
    """
    kind = getattr(builtins, str(name), None)
    if isinstance(kind, type) and issubclass(kind, BaseException) and kind is not KeyboardInterrupt:
        return kind
    return RuntimeError


def _change(argument: Any, value: Any) -> None:
    """Gives a container the content that the other end's copy has."""
    if isinstance(argument, (list, bytearray)):
        argument[:] = value
    elif isinstance(argument, (dict, set)):
        argument.clear()
        argument.update(value)


class CaseRunnerPeer(Peer):
    """The case runner's end: the program's objects are `Remote`, and the program may call only callables that it was given."""

    def __init__(self, connection: socket.socket, most_bytes: int) -> None:
        super().__init__(connection, most_bytes)
        self._classes: dict[int, type[BaseException]] = {}

    def _do(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if "get" in request or request.get("method") != "__call__":
            raise self._is_gone("it asks for something that no program may ask for")
        return super()._do(request)

    def _reference(self, value: Any) -> Any:
        if isinstance(value, Remote):
            return {"yours": value.__longboat_remote__[1]}
        if isinstance(value, type) and value in self._classes.values():
            return {"yours": next(number for number, kind in self._classes.items() if kind is value)}
        if callable(value):
            return {"callable": self.export(value)}
        raise TypeError(f"a {type(value).__name__} can't be passed to the program: only data and functions can")

    def _referred(self, kind: str, content: Any) -> Any:
        if kind != "object":
            raise ValueError(f"{kind!r} is no value")
        number, is_class, exceptions = content
        if exceptions:
            return self._exception(exceptions)
        return Remote(self, int(number), is_class=bool(is_class), made=False)

    def _exceptions(self, value: Any) -> list[Any]:
        """Lists none: the program could call them."""
        return []

    def _exception(self, classes: list[Any]) -> type[BaseException]:
        """Returns the case runner's own class for an exception class of the program."""
        kind = _builtin_error(classes[-1])
        for number, name in reversed(classes[:-1]):
            kind = self._classes.setdefault(int(number), type(str(name), (kind,), {}))
        return kind

    def _error(self, raised: Any) -> BaseException:
        classes = raised.get("classes")
        kind = self._exception(classes) if classes else _builtin_error(raised["kind"])
        arguments = [self.unpack(value) for value in raised["arguments"]]
        try:
            return kind(*arguments)
        except TypeError:
            # UnicodeDecodeError, for example, takes only arguments of certain types.
            return RuntimeError(f"{kind.__name__}: {arguments}")


class Remote:
    """Stands in a test for an object of the program: attributes are read and set, and methods called, there.

    It equals no data, whatever its class says, or a program could return an object that equals every answer. Comparisons with other
    objects of the program are handed on; other operators only for objects that the test has made by calling a class of the program.
    """

    def __init__(self, peer: CaseRunnerPeer, number: int, *, is_class: bool, made: bool) -> None:
        object.__setattr__(self, "__longboat_remote__", (peer, number, is_class, made))

    __longboat_remote__: tuple[CaseRunnerPeer, int, bool, bool]

    def __getattr__(self, name: str) -> Any:
        peer, number, _, _ = self.__longboat_remote__
        return peer.result(peer.ask({"get": number, "name": name}))

    def __setattr__(self, name: str, value: Any) -> None:
        peer, number, _, _ = self.__longboat_remote__
        peer.call(number, "__setattr__", (name, value), {})

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        peer, number, is_class, _ = self.__longboat_remote__
        value = peer.call(number, "__call__", arguments, named)
        if is_class and isinstance(value, Remote):
            return Remote(peer, value.__longboat_remote__[1], is_class=False, made=True)
        return value

    def __iter__(self) -> Any:
        peer, number, _, _ = self.__longboat_remote__
        return peer.call(number, "__iter__", (), {})

    def __next__(self) -> Any:
        peer, number, _, _ = self.__longboat_remote__
        return peer.call(number, "__next__", (), {})

    def __enter__(self) -> Any:
        peer, number, _, _ = self.__longboat_remote__
        return peer.call(number, "__enter__", (), {})

    def __exit__(self, *error: object) -> Any:
        peer, number, _, _ = self.__longboat_remote__
        return peer.call(number, "__exit__", (None, None, None), {})

    def __eq__(self, other: object) -> bool:
        return self._compare("__eq__", other)

    def __lt__(self, other: object) -> bool:
        return self._compare("__lt__", other)

    def __le__(self, other: object) -> bool:
        return self._compare("__le__", other)

    def __hash__(self) -> int:
        return hash(self.__longboat_remote__[1])

    def __str__(self) -> str:
        peer, number, _, _ = self.__longboat_remote__
        return str(peer.call(number, "__str__", (), {}))

    def __repr__(self) -> str:
        peer, number, _, _ = self.__longboat_remote__
        return str(peer.call(number, "__repr__", (), {}))

    def _compare(self, method: str, other: object) -> bool:
        """Compares two objects of the program as their class says. Each equals itself; one compared with data is False."""
        if not isinstance(other, Remote):
            return False
        peer, number, *_ = self.__longboat_remote__
        itself = other.__longboat_remote__[1] == number
        return (itself and method == "__eq__") or peer.call(number, method, (other,), {}) is True


def _operator(name: str) -> Callable[..., Any]:
    def operate(self: Remote, *arguments: Any) -> Any:
        peer, number, _, made = self.__longboat_remote__
        if not made:
            raise TypeError(
                f"an object that the program returned has no {name}: only its attributes and methods can be used"
            )
        return peer.call(number, f"__{name}__", arguments, {})

    return operate


for _name in _OPERATORS:
    setattr(Remote, f"__{_name}__", _operator(_name))
