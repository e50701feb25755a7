"""Reads causes out of Python's tracebacks, as text: the form in which they cross processes. Pure, but for the text of an error.

The last line of a traceback is mostly the cause, but errors of pydantic end in a link, and those of torch in hints.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field

# The longest cause, in characters: a condition shows it in one line.
MOST_CHARACTERS = 300

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# vLLM's processes name themselves before each line, and its loggers write their header before each line of a record.
_PROCESS = re.compile(r"\((?P<process>\S+ pid=\d+)\) ?")
_HEADER = re.compile(r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d-]+ [\d:]+ (?:\(\S+ pid=\d+\) )?\[[^\]]*\] ?")
# Python draws groups of errors with these before each line.
_GROUP = re.compile(r"\s+[|+] ?")
_FRAME = re.compile(r'\s+File "(?P<file>.+)", line \d+, in (?P<function>.+)')
_ERROR = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?")
# What stands between two errors of one traceback, among it Ray's name of a task.
_BETWEEN = re.compile(
    r"Traceback \(most recent|The above exception|During handling|ray::|Exception (?:Group|ignored)|[-+ ]*-{4,}"
)
_VALIDATION = re.compile(r"\d+ validation errors? for (?P<subject>.+)")
_VALIDATION_DETAIL = re.compile(r"\s*(?P<message>.+?) \[type=\w+, input_value=.*")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
# How advice begins, which is about arguments of a library that its users here don't give.
_ADVICE = re.compile(
    r"(?:Check|Consider|Decrease|If you|Increase|Make sure|Please|Reduce|See|Set|To|Try|Use|You can)\b"
)


@dataclass(frozen=True, slots=True)
class Frame:
    """A call of a traceback: its file and function, and the line of source, empty if that isn't known."""

    file: str
    function: str
    line: str = ""


@dataclass(frozen=True, slots=True)
class RaisedError:
    """An error of a traceback: its type as tracebacks name it, its message, and the calls that led to it, outermost first."""

    type: str
    message: str
    frames: tuple[Frame, ...]

    @property
    def name(self) -> str:
        """The type without its module."""
        return self.type.rpartition(".")[2]


def formatted(error: BaseException) -> str:
    """Returns the error's traceback. If pydantic reports an error that a validator raised, the frames of that one stand in it too."""
    inner = next(iter(_validator_errors(error)), None)
    if inner is None:
        return "".join(traceback.format_exception(error))
    frames = traceback.format_tb(error.__traceback__) + traceback.format_tb(inner.__traceback__)
    return "".join(["Traceback (most recent call last):\n", *frames, *traceback.format_exception_only(error)])


def _validator_errors(error: BaseException) -> Iterator[BaseException]:
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        for detail in error.errors(include_url=False, include_input=False):
            if isinstance(raised := detail.get("ctx", {}).get("error"), BaseException):
                yield raised


@dataclass
class _Reading:
    """The lines of one process, of which one error after another is read."""

    errors: list[RaisedError] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    type: str = ""
    message: list[str] = field(default_factory=list)

    def read(self, line: str) -> None:
        if match := _FRAME.fullmatch(line):
            self.end()
            self.frames.append(Frame(match["file"], match["function"]))
        elif _BETWEEN.match(line):
            self.end()
            self.frames = []
        elif self.type:
            self.message.append(line)
        elif self.frames and line[:1].isspace():
            if not self.frames[-1].line:
                self.frames[-1] = Frame(self.frames[-1].file, self.frames[-1].function, line.strip())
        elif self.frames and (match := _ERROR.fullmatch(line)):
            self.type, self.message = match["type"], [match["message"] or ""]
        elif line:
            self.frames = []

    def end(self) -> None:
        """Ends the message that is being read, if one is."""
        if self.type:
            self.errors.append(RaisedError(self.type, "\n".join(self.message).strip(), tuple(self.frames)))
            self.type, self.message, self.frames = "", [], []


def errors_in(text: str) -> list[RaisedError]:
    """Returns the errors whose tracebacks are in `text`, in their order.

    The text may be Python's, Ray's, or the output of several of vLLM's processes in turn: then errors are in the order of the processes.
    """
    readings: dict[str, _Reading] = {}
    for whole in text.splitlines():
        line, process = _COLOUR.sub("", whole), ""
        if match := _PROCESS.match(line):
            line, process = line[match.end() :], match["process"]
        if match := _HEADER.match(line):
            line = line[match.end() :]
        if match := _GROUP.match(line):
            line = line[match.end() :]
        readings.setdefault(process, _Reading()).read(line.rstrip())
    for reading in readings.values():
        reading.end()
    return [error for reading in readings.values() for error in reading.errors]


def cause(text: str) -> str | None:
    """Returns the cause that the last traceback in `text` names, as `sentence`; None if there is no traceback."""
    errors = errors_in(text)
    return sentence(errors[-1]) if errors else None


def cause_in(error: BaseException) -> str:
    """Returns the cause that an error names, or the one in the traceback that it carries, as Ray's errors do; see `sentence`."""
    return cause(formatted(error)) or message_sentence(str(error), type(error).__name__)


def sentence(error: RaisedError) -> str:
    """Returns what an error says, in one line of at most `MOST_CHARACTERS`, without links and hints.

    Rule: of an error of pydantic, the message for each field; of another, the first line, with those after it as long as they end with a
    colon. Sentences that hold a link are left out, and advice after the first sentence. A message that is a word says nothing without
    the error's type, and an empty one nothing without the line of source.
    """
    return message_sentence(error.message, error.name, error.frames[-1] if error.frames else None)


def message_sentence(message: str, name: str, place: Frame | None = None) -> str:
    """Returns what an error of the type `name` says by its `message`, as `sentence` does; `place` is where it was raised."""
    text = _text(message)
    first, *others = _SENTENCE_END.split(text)
    parts = [first, *(part for part in others if not _ADVICE.match(part))]
    line = " ".join(part for part in parts if "://" not in part) or text
    if not line:
        line = f"{name} at `{place.line or place.function}`" if place else name
    elif " " not in line:
        line = f"{name}: {line}"
    return shortened(line)


def _text(message: str) -> str:
    lines = [line for line in message.splitlines() if line.strip()]
    if lines and (match := _VALIDATION.fullmatch(lines[0].strip())):
        return _validation_text(match["subject"], lines[1:])
    text = ""
    for line in lines:
        text = f"{text} {' '.join(line.split())}".strip()
        if not text.endswith(":"):
            break
    return text


def _validation_text(subject: str, lines: list[str]) -> str:
    """Returns what pydantic says of each field of `subject`; a message without one is about the whole."""
    parts, place = [], ""
    for line in lines:
        if match := _VALIDATION_DETAIL.fullmatch(line):
            text = re.sub(r"^(?:Value|Assertion) error, ", "", match["message"])
            parts.append(f"{subject}.{place}: {text}" if place else text)
            place = ""
        elif not line[:1].isspace():
            place = line.strip()
    return "; ".join(parts) or subject


def shortened(text: str, most: int = MOST_CHARACTERS) -> str:
    """Returns the text in one line of at most `most` characters: whole sentences if the first has room, else as many words as have."""
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    ends = [match.start() for match in _SENTENCE_END.finditer(line) if match.start() <= most]
    if ends:
        return line[: ends[-1]]
    return (line[:most].rpartition(" ")[0] or line[: most - 1]) + "…"
