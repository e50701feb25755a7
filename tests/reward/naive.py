"""A grader without any protection, for comparison: it calls the function in a loop, in one process. It speaks as a real child does.

Run as `python -m tests.reward.naive DIRECTORY`: has every hostile program graded and then its probe, each by another naive grader, and
prints what harm was done, as JSON. The graders are children of a process of the same user, as real ones are.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import sys
import tempfile
import types
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from longboat_graders.frames import FrameBuffer, FrameError, encode, to_json
from longboat_graders.result import RewardSample
from tests.reward.hostile_programs import LEFT, PROBE, PROGRAMS, SEED, TRUSTING, Program

# How many seconds to wait for the answer of a program that hangs; none will come.
PATIENCE = 0.3
# The name of a program that does no harm.
HONEST = "honest"
# What the programs leave, if nobody prevents it.
SLEEPER = f"sleep\x00{LEFT}\x00".encode()


def main(directory: str) -> None:
    programs = {HONEST: Program("score = 0.5"), **PROGRAMS}
    print(json.dumps({name: harm(program, tempfile.mkdtemp(dir=directory)) for name, program in programs.items()}))
    for harmed in (*Path("/dev/shm").glob("harm-*"), *Path("/tmp").glob("harm-*")):
        with contextlib.suppress(OSError):
            harmed.rmdir() if harmed.is_dir() else harmed.unlink()


def harm(program: Program, directory: str) -> str | None:
    """What the program does to the grade after it, or to the machine."""
    (requests_out, requests_in), (answers_out, answers_in) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        grade_on(requests_out, answers_in, directory)
    os.close(requests_out)
    os.close(answers_in)
    buffer = FrameBuffer()
    try:
        for token, (text, hangs) in enumerate([(program.text, program.hangs), (PROBE, False)]):
            sample = to_json(asdict(RewardSample(text, "prompt", "truth")))
            with contextlib.suppress(BrokenPipeError):
                os.write(requests_in, encode({"token": token, "seed": SEED}, sample))
            answer = next_answer(answers_out, buffer, PATIENCE if hangs else None)
            if answer is None:
                return "no answer"
            score = answer["outcome"]["score"]
            if score == 1.0:
                return "it got out, or forged its answer"
            if token and (answer["token"] != token or score != 0.25):
                return "the next grade"
        return f"processes {left}" if (left := [*sleepers(), *members(pid)]) else None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for sleeper in sleepers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(sleeper, signal.SIGKILL)
        os.close(requests_in)
        os.close(answers_out)


def grade_on(requests: int, answers: int, directory: str) -> None:
    """The naive grader. Never returns."""
    try:
        os.setpgid(0, 0)
        os.dup2(requests, 0)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        os.dup2(answers, 3)
        os.closerange(4, 1024)
        os.chdir(directory)
        # As in real graders.
        os.umask(0o077)
        os.environ["HOME"] = directory
        module = types.ModuleType("trusting")
        exec(TRUSTING, vars(module))  # noqa: S102 - as its author would have it
        sys.modules["trusting"] = module
        buffer = FrameBuffer()
        while data := os.read(0, 2**20):
            for request, body in buffer.feed(data):
                random.seed(request["seed"])
                score = graded(module.run, RewardSample(**json.loads(body)))
                os.write(3, encode({"token": request["token"], "outcome": {"kind": "scored", "score": score}}))
    finally:
        os._exit(1)


def graded(function: Any, sample: RewardSample) -> float:
    try:
        return float(function(sample))
    except Exception:  # noqa: BLE001
        return -1.0


def next_answer(answers: int, buffer: FrameBuffer, patience: float | None) -> dict[str, Any] | None:
    """Returns the next answer, or None if none can be read."""
    while select.select([answers], [], [], patience)[0]:
        data = os.read(answers, 2**20)
        try:
            messages = buffer.feed(data)
        except FrameError:
            return None
        if messages:
            return messages[0][0]
        if not data:
            return None
    return None


def sleepers() -> Iterator[int]:
    """Processes that programs have left."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "cmdline").read_bytes() == SLEEPER:
                    yield int(entry.name)


def members(leader: int) -> Iterator[int]:
    """Processes of the group, but for its leader."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != leader:
            with contextlib.suppress(OSError):
                state, _, group, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(group) == leader and state != "Z":
                    yield int(entry.name)


if __name__ == "__main__":
    sys.modules["naive"] = sys.modules["__main__"]
    main(sys.argv[1])
