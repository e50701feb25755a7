"""Runs the program of one response against the test cases of its row, and grades it.

A case runner is a separate process for each grade, forked from a zygote like any grader. Only it knows the expected results. Programs are
other processes, started by its `launcher`. They can neither signal it nor read its memory, and only data passes from them to it.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from contextlib import suppress

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_crds.reward_kinds import Credit, TestCaseFormat
from longboat_graders import program as programs
from longboat_graders.frames import MAX_FRAME_BYTES
from longboat_graders.messages import OutcomeKind
from longboat_graders.process_tree import oom_kills, was_short
from longboat_graders.program import (
    CaseLimit,
    Ended,
    Launcher,
    Run,
    build_directory,
    paths_outside,
    run_directory,
)
from longboat_graders.remote import MODULE, CaseRunnerPeer, ProgramGone, Remote
from longboat_graders.sandbox import Limits
from longboat_graders.seccomp import can_ask
from longboat_graders.test_cases import (
    Called,
    CasesError,
    CheckFunction,
    Printed,
    PytestFile,
    completed,
    program_of,
    read_tests,
)
from longboat_graders.verdict import CaseResult, same_output, same_value, score_of

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from longboat_graders.messages import RewardFunction, SandboxSettings
    from longboat_graders.result import RewardSample

# Where the graders' socket is, which programs needn't see.
_SOCKETS = "/run/longboat"
# File descriptor of the launcher's socket in a case runner.
LAUNCHER_FD = 4
# The most bytes of a program's error output that go into the outcome's message.
_ERROR_BYTES = 300


class CaseRunner:
    """Loads what case runners need; forked children `start` and then grade one response.

    Programs see nothing of the `hidden` directories. Raises SpecProblem for a part of `field`, the reward's path.
    """

    def __init__(self, function: RewardFunction, field: str, hidden: Sequence[str]) -> None:
        assert function.sandbox is not None
        self._settings = settings = function.sandbox
        if function.parameters:
            name = next(iter(function.parameters))
            raise SpecProblem(
                Reason.REWARD_FUNCTION_INVALID,
                f"{field}.parameters.{name}",
                f"The kind Sandbox has no parameter {name!r}: its settings are those of `sandbox`.",
            )
        for name, command in (("compileCommand", settings.compile_command), ("runCommand", settings.run_command)):
            if command is not None:
                _check_command(command[0], f"{field}.sandbox.{name}[0]")
        programs.preload()
        # Its answer is cached for all forks.
        can_ask()
        if settings.format in (TestCaseFormat.AUTO, TestCaseFormat.LIVE_CODE_BENCH):
            import pickletools  # noqa: F401 - as in every grade of LiveCodeBench
        if settings.format is TestCaseFormat.PYTEST:
            import pytest  # noqa: F401
        self._readable = paths_outside([_scratch(), _SOCKETS, *hidden])
        self._launcher: Launcher | None = None

    @property
    def limits(self) -> Limits:
        """Limits for `limit_all` of the processes that programs are forks of: a program's own file size is no higher."""
        most = max(self._settings.file_size, self._settings.output_size + 1, MAX_FRAME_BYTES)
        return Limits(memory=None, file_size=most)

    def start(self, directory: str, protected: Sequence[int]) -> None:
        """Forks the launcher. Called in a child that has no sample yet and isn't confined."""
        self._launcher = Launcher(directory, self._settings, self._readable, protected)

    @property
    def launcher_fd(self) -> int:
        """The file descriptor of the connection to its launcher, -1 without one. The process moves it to LAUNCHER_FD before it grades."""
        return -1 if self._launcher is None else self._launcher.fileno()

    def outcome(self, sample: RewardSample, seconds: float, seed: int, own: Mapping[str, Any]) -> Mapping[str, Any]:
        """Grades a sample; the outcome is as children send it, with the CPU seconds of the programs.

        `seconds` is the limit of a case, `own` a CaseLimit as JSON.

        If the latter has a learned limit, the outcome also has `own_seconds`, the most that a case took, and `limited`: whether a case
        failed because that limit ended it. Raises TimeoutError if a program hardly got a CPU, ConnectionError if the launcher has ended.
        """
        assert self._launcher is not None
        self._launcher.moved(LAUNCHER_FD)
        limit = CaseLimit(**own)
        grade = _Grade(self._launcher, self._settings, seconds, seed, limit)
        source = program_of(sample.text)
        if not source.strip():
            return grade.answer(OutcomeKind.WRONG_FORMAT, 0.0, "there is no program")
        sys.set_int_max_str_digits(programs.DIGITS)
        try:
            tests = read_tests(self._settings.format, sample.ground_truth, sample.columns)
        except CasesError as error:
            return grade.answer(OutcomeKind.GRADER_ERROR, 0.0, f"the row can't be graded: {error}")
        if not isinstance(tests, CheckFunction | PytestFile):
            tests = tests[: self._settings.max_cases]
        try:
            results, cases = grade.results(source, tests)
        except _OutOfMemoryError as error:
            return grade.answer(OutcomeKind.LOST, 0.0, str(error))
        except CasesError as error:
            return grade.answer(OutcomeKind.GRADER_ERROR, 0.0, f"the row can't be graded: {error}")
        score = score_of(results, cases, fraction=self._settings.credit is Credit.FRACTION)
        kind = OutcomeKind.TIMEOUT if score.timed_out else OutcomeKind.SCORED
        message = f"{score.message} ({grade.error})" if score.message and grade.error else score.message
        if grade.limited:
            message += f"; killed after {limit.seconds:.3g} s, the limit that was learned"
        return grade.answer(kind, 0.0 if score.timed_out else score.score, message)


def _scratch() -> str:
    import tempfile

    return tempfile.gettempdir()


def _check_command(command: str, field: str) -> None:
    if command.startswith("{") or shutil.which(command) is not None:
        return
    raise SpecProblem(
        Reason.COMMAND_NOT_FOUND,
        field,
        f"There is no command {command!r} where the graders run. Install it in the image of the graders (`gradersImage` of the "
        "runtime template), or name one that it has.",
    )


class _OutOfMemoryError(Exception):
    """A program crashed while the container was short of memory: whether that was the program's doing isn't known."""


class _Grade:
    """The programs of one response. `error` is what the first one that crashed said of it; `cpu_seconds` are those of all so far.

    With a learned limit, `own_seconds` are the most that a case has taken so far, and `limited` says whether one was ended by it.
    """

    def __init__(
        self, launcher: Launcher, settings: SandboxSettings, seconds: float, seed: int, own: CaseLimit
    ) -> None:
        self._launcher, self._settings, self._seconds, self._seed, self._own = launcher, settings, seconds, seed, own
        self.error, self.cpu_seconds, self.own_seconds, self.limited = "", 0.0, 0.0, False

    def answer(self, kind: OutcomeKind, score: float, message: str) -> Mapping[str, Any]:
        """Returns what the case runner answers."""
        outcome = {"kind": kind.value, "score": score, "message": message, "cpu_seconds": self.cpu_seconds}
        learned = {"own_seconds": self.own_seconds, "limited": self.limited}
        return outcome if self._own.seconds is None else outcome | learned

    def results(self, source: str, tests: Any) -> tuple[list[CaseResult], int]:
        """Runs the cases, with AllOrNothing up to the first failure.

        Returns their results (if the program doesn't compile, that one failure) and the number of cases. Raises CasesError, TimeoutError or
        _OutOfMemoryError if they can't be judged.
        """
        if isinstance(tests, CheckFunction):
            return [self._checked(source, tests)], 1
        if isinstance(tests, PytestFile):
            return self._tested(source, tests)
        code = source.encode(errors="replace")
        if self._settings.run_command is not None:
            failed = self._built(code)
            if failed is not None:
                return [failed], len(tests)
        results: list[CaseResult] = []
        for case in tests:
            results.append(self._printed(code, case) if isinstance(case, Printed) else self._called(code, case))
            if results[-1] is not CaseResult.PASSED and self._settings.credit is Credit.ALL_OR_NOTHING:
                break
        return results, len(tests)

    # --- Programs that read and print ------------------------------------------------------------------------------

    def _built(self, code: bytes) -> CaseResult | None:
        """Writes the program's file and compiles it; the result if that fails."""
        with open(self._filled(["{file}"])[0], "wb") as file:
            file.write(code)
        command = self._settings.compile_command
        if command is None:
            return None
        own = CaseLimit(slowdown=self._own.slowdown)
        run = Run(programs.COMMAND, self._settings.compile_seconds, self._seed, self._filled(command), True, own)
        result, _ = self._run(run, b"", b"")
        if result is not CaseResult.PASSED:
            self.error = f"it doesn't compile: {self.error}"
            return result
        return None

    def _filled(self, command: Sequence[str]) -> tuple[str, ...]:
        directory = build_directory(self._launcher.directory)
        values = {"{file}": f"{directory}/{self._settings.file_name}", "{directory}": directory}
        return tuple(_replaced(word, values) for word in command)

    def _printed(self, code: bytes, case: Printed) -> CaseResult:
        command = self._settings.run_command
        kind = programs.SCRIPT if command is None else programs.COMMAND
        run = Run(kind, self._seconds, self._seed, self._filled(command or ()), own=self._own)
        result, printed = self._run(run, code if command is None else b"", case.stdin.encode(errors="replace"))
        if result is not CaseResult.PASSED:
            return result
        return CaseResult.PASSED if same_output(printed, case.expected) else CaseResult.WRONG

    def _run(self, run: Run, code: bytes, stdin: bytes) -> tuple[CaseResult, str]:
        """Runs a program; returns how it ended, PASSED if with exit code 0, and its standard output. Raises the errors of `_count`."""
        with _Files(run_directory(self._launcher.directory), source=code, stdin=stdin) as files:
            self._start(run, files.numbers)
            result = self._ended(self._launcher.ended(), files)
            return result, files.read("stdout", self._settings.output_size)

    def _start(self, run: Run, files: Mapping[str, int]) -> None:
        self._oom_kills = oom_kills()
        self._launcher.start(run, files)

    def _count(self, ended: Ended, result: CaseResult) -> CaseResult:
        """Counts a run that has this result, and returns the result.

        Raises TimeoutError if nothing is known of it for want of a CPU, _OutOfMemoryError if it crashed while memory was short.
        """
        if ended.starved:
            raise TimeoutError(f"a program hardly got a CPU in {ended.seconds:g} s")
        if result is CaseResult.CRASHED and was_short(self._oom_kills, oom_kills()):
            raise _OutOfMemoryError(
                "a program crashed while the kernel ended processes for want of memory in the container"
            )
        self.cpu_seconds += ended.cpu_seconds
        self.own_seconds = max(self.own_seconds, ended.own_seconds or 0.0)
        self.limited = self.limited or (ended.limited and result is not CaseResult.PASSED)
        return result

    def _ended(self, ended: Ended, files: _Files) -> CaseResult:
        result = ended.limit or (CaseResult.PASSED if ended.status == 0 else CaseResult.CRASHED)
        if result is CaseResult.CRASHED and not self.error:
            lines = files.end("stderr", _ERROR_BYTES).strip().splitlines() or [f"exit code {ended.status}"]
            self.error = lines[-1]
        return self._count(ended, result)

    # --- Programs whose functions are called -----------------------------------------------------------------------

    def _called(self, code: bytes, case: Called) -> CaseResult:
        if self._settings.run_command is not None:
            raise CasesError("its test cases call a Python function, but the reward has a runCommand")

        def ask(peer: CaseRunnerPeer) -> CaseResult:
            returned = peer.call(MODULE, case.function, case.arguments, {})
            return CaseResult.PASSED if same_value(returned, case.expected, wrapped=case.wrapped) else CaseResult.WRONG

        return self._served(code, ask)

    def _checked(self, source: str, tests: CheckFunction) -> CaseResult:
        scope: dict[str, Any] = {"__name__": "tests"}
        try:
            exec(compile(f"{tests.prompt}\n\n{tests.test}", "tests", "exec", dont_inherit=True), scope)  # noqa: S102 - the row's, not the response's
            check = scope["check"]
        except BaseException as error:
            raise CasesError(f"its column `test` can't be used: {type(error).__name__}: {error}") from error

        def ask(peer: CaseRunnerPeer) -> CaseResult:
            check(lambda *arguments, **named: peer.call(MODULE, tests.function, arguments, named))
            return CaseResult.PASSED

        code = completed(tests.prompt, tests.function, source)
        return self._served(code.encode(errors="replace"), ask)

    def _tested(self, source: str, tests: PytestFile) -> tuple[list[CaseResult], int]:
        from longboat_graders.pytest_file import Report, run_file

        report = Report(self._settings.max_cases)

        def ask(peer: CaseRunnerPeer) -> CaseResult:
            stops = self._settings.credit is Credit.ALL_OR_NOTHING
            run_file(
                f"{self._launcher.directory}/tests",
                tests.text,
                Remote(peer, MODULE, is_class=False, made=False),
                report,
                stops,
            )
            return CaseResult.PASSED if report.results and all(report.results) else CaseResult.WRONG

        ended = self._served(source.encode(errors="replace"), ask)
        if report.empty and ended is CaseResult.WRONG:
            raise CasesError("its column `test` has no test that pytest finds")
        results = [CaseResult.PASSED if passed else CaseResult.WRONG for passed in report.results]
        if ended not in (CaseResult.PASSED, CaseResult.WRONG):
            # The first test that failed, or that there was no more time for, stands for the one that was under way when the program ended.
            first = results.index(CaseResult.WRONG) if CaseResult.WRONG in results else len(results)
            results[first : first + 1] = [ended]
        return results, max(report.cases, len(results))

    def _served(self, code: bytes, ask: Callable[[CaseRunnerPeer], CaseResult]) -> CaseResult:
        """Returns the result of `ask`, which calls functions of the program until it is done."""
        own_end, program_end = socket.socketpair()
        run = Run(programs.SERVED, self._seconds, self._seed, own=self._own)
        with own_end, _Files(run_directory(self._launcher.directory), source=code, stdin=b"") as files:
            with program_end:
                self._start(run, {**files.numbers, "peer": program_end.fileno()})
            peer = CaseRunnerPeer(own_end, self._settings.output_size + 1024)
            raised: ProgramGone | None = None
            result = CaseResult.CRASHED
            try:
                peer.receive()
                result = ask(peer)
            except ProgramGone as error:
                raised = error
            except AssertionError:
                result = CaseResult.WRONG
            except CasesError:
                raise
            except BaseException as error:  # noqa: BLE001 - of the program, or of a test that didn't expect its answer
                self.error = self.error or f"{type(error).__name__}: {error}"[:_ERROR_BYTES]
            finally:
                self._launcher.stop()
                ended = self._launcher.ended()
            if raised is not None or peer.gone:
                # A test may have caught it.
                result = self._ended(ended, files)
                return result if result is not CaseResult.PASSED else CaseResult.CRASHED
            return self._count(ended, result if result is CaseResult.PASSED or ended.limit is None else ended.limit)


def _replaced(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word


class _Files:
    """Files without a name, with which a program is started: its source and input, and where its output goes."""

    def __init__(self, directory: str, source: bytes, stdin: bytes) -> None:
        self.numbers: dict[str, int] = {}
        for name, content in (("stdin", stdin), ("stdout", b""), ("stderr", b""), ("source", source)):
            number = self.numbers[name] = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(number, rest) :]
            os.lseek(number, 0, os.SEEK_SET)

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        for number in self.numbers.values():
            os.close(number)

    def read(self, name: str, most: int) -> str:
        """Reads the beginning, at most so many bytes, as text."""
        number = self.numbers[name]
        return b"".join(_parts(number, most)).decode(errors="replace")

    def end(self, name: str, most: int) -> str:
        """Reads the end, at most so many bytes, as text; empty if it can't be read."""
        number = self.numbers[name]
        with suppress(OSError):
            return os.pread(number, most, max(os.fstat(number).st_size - most, 0)).decode(errors="replace")
        return ""


def _parts(number: int, most: int) -> Iterator[bytes]:
    at = 0
    while at < most and (data := os.pread(number, most - at, at)):
        at += len(data)
        yield data
