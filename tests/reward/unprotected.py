"""What hostile responses do to graders that have no sandbox, for comparison: each runs as the graders' user, in a directory of its own.

Run as `python -m tests.reward.unprotected DIRECTORY [NAME...]`: prints what harm each response did, as JSON; null if it did none. Its own processes
end with it.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from longboat_graders import prctl
from longboat_graders.leftovers import remove_tree
from longboat_graders.process_tree import descendants
from tests.reward.hostile_neighbours import SECRET
from tests.reward.hostile_responses import OUTPUT_BYTES, RESPONSES, TEST_FILE, TESTS, Harm, Response, Way
from tests.support.waiting import DEADLINE_SECONDS, NeverHappenedError, eventually

# How many seconds to wait for programs that go on for ever.
SHORT = 1.0

# Case runners as one might write them. The first runs the response in its own process and keeps what it returns.
_TAKES_VALUES = """
import json, pickle
scope = {}
exec(open('../program.py').read(), scope)
try:
    value = scope['square'](3)
except Exception as error:
    print('graded', str(error))
    raise SystemExit
print(json.dumps(pickle.loads(pickle.dumps(value))))
print('graded')
"""
# What pytest's exit code says if it has failed itself (https://docs.pytest.org/en/stable/reference/exit-codes.html).
_PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", ".", "test_solution.py"]
_PYTEST_FAILED = 3
# The second reads the file that the response was to write, and cleans up.
_READS_FILES = """
import shutil
answer = open('answer').read()
assert len(answer) < 2**20 and 'SECRET' not in answer
shutil.rmtree('.')
print('graded')
"""


def main(directory: str, names: list[str]) -> None:
    prctl.adopt_orphans()
    arguments = own_arguments()
    harms = {}
    for name in names or RESPONSES:
        # Another one each time: the last may have been killed without having ended yet.
        victim = subprocess.Popen(["sleep", arguments[0]])
        try:
            harms[name] = harm(
                RESPONSES[name].aimed(*arguments, watched=0.0), Path(tempfile.mkdtemp(dir=directory)), victim.pid
            )
        finally:
            victim.kill()
            victim.wait()
    print(json.dumps(harms))


def harm(response: Response, directory: Path, victim: int) -> str | None:
    """What it did, or None. Whatever it has left is ended."""
    place = directory / "run"
    place.mkdir()
    for name in ("secret", "secret.copy"):
        (directory / name).write_text(SECRET + secrets.token_hex(8))
    # Also what this process has in its environment, in its memory and in an open file is a secret.
    os.environ["ANSWERS"] = SECRET + secrets.token_hex(8)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    end = f"{TESTS}\ncheck(square)\n" if response.harm is Harm.FORGES and response.way is not Way.TEST_FILE else ""
    (directory / "program.py").write_text(f"{response.text}\n{end}")
    if response.way is Way.TEST_FILE:
        (place / "solution.py").write_text(response.text)
        (place / "test_solution.py").write_text(TEST_FILE)
    try:
        with (directory / "secret").open(), (directory / "out").open("w+b") as output:
            return _seen(response, place, output.fileno())
    finally:
        _end_others(victim)
        remove_tree(str(directory))
        for stray in (*Path("/tmp").glob("harm-*"), *Path("/var/tmp").glob("harm-*"), *Path("/dev/shm").glob("harm-*")):
            with suppress(OSError):
                stray.rmdir() if stray.is_dir() and not stray.is_symlink() else stray.unlink()


def _seen(response: Response, place: Path, output: int) -> str | None:
    if response.harm is Harm.CONFUSES:
        (place / "case_runner.py").write_text(_TAKES_VALUES)
        return _failed_case_runner(place, output)
    process = _started(_PYTEST if response.way is Way.TEST_FILE else ["../program.py"], place, output)
    try:
        code = process.wait(SHORT if response.harm is Harm.RUNS_ON else DEADLINE_SECONDS)
    except subprocess.TimeoutExpired:
        return "it goes on" if response.harm is Harm.RUNS_ON else None
    printed = os.pread(output, 64, max(os.fstat(output).st_size - 64, 0))
    match response.harm:
        case Harm.PRINTS:
            return "it did what it wanted" if b"HARM\n" in printed else None
        case Harm.PRINTS_MUCH:
            return "much output" if os.fstat(output).st_size > OUTPUT_BYTES else None
        case Harm.LEAVES:
            return "a process" if _leaves(own_arguments()[1]) else None
        case Harm.FORGES:
            if code == _PYTEST_FAILED and response.way is Way.TEST_FILE:
                return "its case runner fails"
            return "the tests pass" if code == 0 else None
        case Harm.TRAPS:
            (place.parent / "case_runner.py").write_text(_READS_FILES)
            return _failed_case_runner(place, output, "../case_runner.py")
    return None


def _leaves(argument: str) -> bool:
    """Returns whether such a process is left, as soon as it is."""
    try:
        return bool(eventually(lambda: list(left(argument))))
    except NeverHappenedError:
        return False


def _failed_case_runner(place: Path, output: int, case_runner: str = "case_runner.py") -> str | None:
    os.truncate(output, 0)
    judging = _started([case_runner], place, output)
    try:
        code: int | None = judging.wait(SHORT * 2)
    except subprocess.TimeoutExpired:
        return "its case runner hangs"
    size = os.fstat(output).st_size
    if code != 0 or size > OUTPUT_BYTES or not os.pread(output, size, 0).rstrip().endswith(b"graded"):
        return "its case runner fails"
    return None


def _started(arguments: list[str], place: Path, output: int) -> subprocess.Popen[bytes]:
    """Started by a shell, so that its parent has a secret in what /proc shows of its environment."""
    script = f"{shlex.join([sys.executable, *arguments])}; exit $?"
    return subprocess.Popen(["sh", "-c", script], cwd=place, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def own_arguments() -> tuple[str, str]:
    """Of `sleep`: of a process that this process' programs may try to harm, and of one that they leave."""
    return f"7777.{os.getpid()}", f"1000.{os.getpid()}"


def left(argument: str) -> Iterator[int]:
    """Processes that programs have left on this machine."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if (entry / "cmdline").read_bytes() == f"sleep\x00{argument}\x00".encode():
                    yield int(entry.name)


def _others(victim: int) -> list[int]:
    return [pid for pid in descendants().pids if pid != victim]


def _end_others(victim: int) -> None:
    """Kills and reaps until none is left: one that is just being forked isn't in the list before."""
    eventually(lambda: not _killed(_others(victim)))


def _killed(pids: list[int]) -> list[int]:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return pids


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
