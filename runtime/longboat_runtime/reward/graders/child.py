"""The process of one grade: forked from the zygote, it confines itself, scores, answers and ends."""

from __future__ import annotations

import os
import signal
import traceback
from typing import IO, NoReturn

from longboat_runtime import prctl
from longboat_runtime.reward.adapters import Scorer
from longboat_runtime.reward.graders import frames
from longboat_runtime.reward.graders.sandbox import Sandbox
from longboat_runtime.reward.result import FunctionOutcome, OutcomeKind, RewardSample

# Longest message of an outcome, so that a frame fits into a pipe and nothing blocks.
MESSAGE_CHARACTERS = 2000
_ANSWER_FD = 3


def run_grade(score: Scorer, sample: RewardSample, sandbox: Sandbox, *, answer: int, output: IO[bytes]) -> NoReturn:
    """Never returns. `answer` is a pipe's end for one outcome frame, `output` takes standard output and error."""
    code = 1
    try:
        os.setpgid(0, 0)
        prctl.die_with_parent()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        unconfined = _locked_in(sandbox)
        _arrange_files(answer, output)
        outcome = unconfined or _graded(score, sample)
        os.write(_ANSWER_FD, frames.encode(outcome.to_json()))
        code = 0
    finally:
        # Whatever happened, a child must never continue as a zygote.
        os._exit(code)


def _locked_in(sandbox: Sandbox) -> FunctionOutcome | None:
    """The answer if the sandbox can't be entered; nothing of the response has been read by then."""
    try:
        sandbox.enter()
    except (OSError, ValueError) as error:
        return FunctionOutcome(OutcomeKind.GRADER_ERROR, message=describe(error))
    return None


def _arrange_files(answer: int, output: IO[bytes]) -> None:
    """Standard streams, the answer at a fixed number that programs started from here don't inherit, nothing else."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    os.dup2(answer, _ANSWER_FD, inheritable=False)
    os.closerange(_ANSWER_FD + 1, os.sysconf("SC_OPEN_MAX"))


def _graded(score: Scorer, sample: RewardSample) -> FunctionOutcome:
    try:
        result = score(sample)
        if result is None:
            return FunctionOutcome(OutcomeKind.NOT_APPLICABLE)
        return FunctionOutcome(
            OutcomeKind.SCORED if result.format_ok else OutcomeKind.WRONG_FORMAT, float(result.score)
        )
    # SystemExit and the like also come from graded code, and end nothing but this grade.
    except BaseException as error:  # noqa: BLE001
        return FunctionOutcome(OutcomeKind.GRADER_ERROR, message=describe(error))


def describe(error: BaseException) -> str:
    """One line: the error and where it came from."""
    frames_of_error = traceback.extract_tb(error.__traceback__)
    place = f" ({frames_of_error[-1].filename} line {frames_of_error[-1].lineno})" if frames_of_error else ""
    return f"{type(error).__name__}: {error}"[: MESSAGE_CHARACTERS // 2] + place[-MESSAGE_CHARACTERS // 2 :]
