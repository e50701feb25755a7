"""A process that grades: forked from the zygote, it confines itself, and answers one request or one after the other.

Requests and answers are frames on one socket: {token, seed} with the sample as body; {token, outcome, leave}, where `leave` says why the
process must go, such as for what the grade left behind; or {refused}, with which it ends. An outcome is {kind, score, message}. A case
runner's request has also `seconds`, the limit of each test case, and `own`, their CaseLimit. `case_runner` says what else its outcome has.

What is called here for every grade touches memory that until then a child shares with its zygote, a page at a time: so it calls little.
"""

from __future__ import annotations

import os
import random
import sys

from longboat_runtime.reward.graders import frames
from longboat_runtime.reward.graders.leftovers import Baseline
from longboat_runtime.reward.graders.sandbox import Limits, Sandbox, limit_all
from longboat_runtime.reward.graders.watch import Origins, Watch
from longboat_runtime.reward.result import OutcomeKind, RewardResult, RewardSample

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any, NoReturn

    from longboat_runtime.reward.adapters import Scorer
    from longboat_runtime.reward.graders.case_runner import CaseRunner
    from longboat_runtime.reward.graders.seccomp import Filter

# Longest message of an outcome, in characters.
MESSAGE_CHARACTERS = 2000
# How often the zygote runs the code of its children beforehand, so that the interpreter has specialised all of it.
_REHEARSALS = 50
# A process that stays is replaced after this many grades.
MAX_GRADES = 4000
_SERVER_FD = 3
_NULL, _MOST_FILES = os.devnull, os.sysconf("SC_OPEN_MAX")
# Small enough that the C library doesn't map memory anew for each buffer.
_READ_BYTES = 64 * 1024


def run_child(
    score: Scorer | CaseRunner,
    sandbox: Sandbox,
    calls: Filter,
    origins: Origins,
    protected: Sequence[int],
    *,
    server: int,
    stays: bool,
    watched: bool,
) -> NoReturn:
    """Runs a child, which leads a process group, and never returns.

    `server` is its socket's file descriptor, `protected` are processes that no program may signal.

    A child that `stays` grades until a grade leaves something behind, at most MAX_GRADES times; any other, and a case runner, grades
    once. One that stays and is `watched` ends before it does what `watch` refuses, such as running code that came with a sample.
    """
    code = 1
    try:
        unconfined = None if callable(score) else _start_launcher(score, sandbox, protected)
        unconfined = unconfined or _locked_in(sandbox, calls)
        _arrange_files(server, sandbox.output, None if callable(score) or unconfined else score.launcher_fd)
        if unconfined is not None:
            request, _ = next(_requests())
            _answer({"token": request["token"], "outcome": unconfined, "leave": "no sandbox"})
        elif stays and callable(score):
            _grade_on(score, origins, watched)
        else:
            request, sample = next(_requests())
            _seed(request["seed"])
            _answer({"token": request["token"], "outcome": _outcome(score, request, _sample(sample))})
        os.read(_SERVER_FD, 1)  # until the server has measured the last grade, and closes its end
        code = 0
    finally:
        # Whatever happened, a child must never continue as a zygote.
        os._exit(code)


def _outcome(score: Scorer | CaseRunner, request: Mapping[str, Any], sample: RewardSample) -> Mapping[str, Any]:
    if callable(score):
        return _graded(score, sample)
    try:
        return score.outcome(sample, request["seconds"], request["seed"], request["own"])
    except BaseException as error:  # noqa: BLE001 - also of tests that a case runner runs
        return _error(error)


def _grade_on(score: Scorer, origins: Origins, watched: bool) -> None:
    baseline, output, flush = Baseline(origins), _Output(), sys.stdout.flush
    answer, seed, graded, sampled, change, empty = _answer, _seed, _graded, _sample, baseline.change, output.empty
    if watched:
        Watch(origins, _graded.__code__, _refuse).start()
    for grades, (request, sample) in enumerate(_requests(), start=1):
        seed(request["seed"])
        outcome = graded(score, sampled(sample))
        flush()
        empty()
        leave_reason = change() or (f"{MAX_GRADES} grades" if grades == MAX_GRADES else None)
        answer({"token": request["token"], "outcome": outcome, "leave": leave_reason})
        if leave_reason is not None:
            return


class _Output:
    """The file that takes what a grade prints, for the message of a process that ends. It is emptied after each grade."""

    def __init__(self) -> None:
        self._fstat, self._truncate, self._seek = os.fstat, os.ftruncate, os.lseek

    def empty(self) -> None:
        if self._fstat(1).st_size:
            self._truncate(1, 0)
            self._seek(1, 0, os.SEEK_SET)


def _requests() -> Iterator[tuple[dict[str, Any], bytes]]:
    buffer, read = frames.FrameBuffer(), os.read
    while data := read(_SERVER_FD, _READ_BYTES):
        yield from buffer.feed(data)


def _answer(answer: dict[str, Any], encode: Any = frames.encode, write: Any = os.write) -> None:
    write(_SERVER_FD, encode(answer))


def _refuse(what: str, answer: Any = _answer, leave: Any = os._exit) -> None:
    """Answers with the refusal and ends the process at once: graded code can't catch that."""
    answer({"refused": what[:MESSAGE_CHARACTERS]})
    leave(1)


def _sample(body: bytes) -> RewardSample:
    return RewardSample(**frames.from_json(body))


def _seed(seed: int) -> None:
    """Gives the global random number generators of Python, numpy, torch (CPU) and sympy, if they are there, the sample's own state."""
    modules = sys.modules
    random.seed(seed)
    if "numpy.random" in modules:
        modules["numpy.random"].seed(seed % 2**32)
    if "torch.random" in modules:
        modules["torch.random"].default_generator.manual_seed(seed % 2**63)
    if "sympy.core.random" in modules:
        modules["sympy.core.random"].seed(seed)


def _start_launcher(case_runner: CaseRunner, sandbox: Sandbox, protected: Sequence[int]) -> Mapping[str, Any] | None:
    """Starts the launcher before `_locked_in`, so that the case runner's own limits don't bind programs.

    Returns the error's outcome if that can't be done, else None.
    """
    try:
        os.setpgid(0, 0)
        case_runner.start(sandbox.directory, protected)
        limit_all(Limits(file_size=case_runner.limits.file_size))
    except OSError as error:
        return _error(error)
    return None


def _locked_in(sandbox: Sandbox, calls: Filter) -> Mapping[str, Any] | None:
    """Enters the sandbox; returns the error's outcome if that can't be done, else None. Nothing of a response has been read by then."""
    try:
        sandbox.enter(calls)
        if "tempfile" in sys.modules:
            sys.modules["tempfile"].tempdir = None  # type: ignore[attr-defined]
    except (OSError, ValueError) as error:
        return _error(error)
    return None


def _arrange_files(server: int, output: int, launcher: int | None) -> None:
    """Opens the standard streams, and moves sockets to fixed numbers that programs started from here don't inherit; closes all else."""
    duplicate = os.dup2
    duplicate(os.open(_NULL, os.O_RDONLY), 0)
    duplicate(output, 1)
    duplicate(output, 2)
    duplicate(server, _SERVER_FD, False)
    first = _SERVER_FD + 1
    if launcher is not None:
        duplicate(launcher, first, False)
        first += 1
    os.closerange(first, _MOST_FILES)


def rehearse() -> None:
    """Does in the zygote what a child does once it has a sample, the function aside.

    What Python and the C library change at the first calls of anything, each child would otherwise change in memory of its own.
    """
    sample = frames.to_json({"text": "", "prompt": "", "ground_truth": "", "columns": {}})
    for _ in range(_REHEARSALS):
        for request, body in frames.FrameBuffer().feed(frames.encode({"token": 2**61, "seed": 2**61}, sample)):
            _seed(request["seed"])
            outcome = _graded(lambda _: RewardResult(0.5), _sample(body))
            frames.encode({"token": request["token"], "outcome": outcome})


def _graded(
    score: Scorer,
    sample: RewardSample,
    right: str = OutcomeKind.SCORED.value,
    wrong: str = OutcomeKind.WRONG_FORMAT.value,
) -> Mapping[str, Any]:
    try:
        result = score(sample)
        if result is None:
            return {"kind": OutcomeKind.NOT_APPLICABLE.value, "score": 0.0, "message": ""}
        return {"kind": right if result.format_ok else wrong, "score": float(result.score), "message": ""}
    # SystemExit and the like also come from graded code, and end nothing but this grade.
    except BaseException as error:  # noqa: BLE001
        return _error(error)


def _error(error: BaseException) -> Mapping[str, Any]:
    return {"kind": OutcomeKind.GRADER_ERROR.value, "score": 0.0, "message": describe(error)}


def describe(error: BaseException) -> str:
    """Describes the error and the line that raised it, in at most MESSAGE_CHARACTERS."""
    place, trace = "", error.__traceback__
    while trace is not None:
        place, trace = f" ({trace.tb_frame.f_code.co_filename} line {trace.tb_lineno})", trace.tb_next
    return f"{type(error).__name__}: {error}"[: MESSAGE_CHARACTERS // 2] + place[-MESSAGE_CHARACTERS // 2 :]
