"""Runs tests again and again on a busy machine, and reports which failed and how often: `python -m tests.support.stress COUNT TEST ...`.

As many processes as there are CPUs, and at least two, compute meanwhile. Each round is a separate run of pytest, so that shared fixtures
start anew too. A test that takes more than half a minute is left out after three rounds. Results of all rounds stay below `build/stress`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

BURNERS = max(2, len(os.sched_getaffinity(0)))

# Ends once it is an orphan, so that nothing keeps computing after this program was killed.
_BURN = "import os; parent = os.getppid()\nwhile os.getppid() == parent: sum(range(1000000))"

# A test that takes longer than LONG_SECONDS runs in LONG_ROUNDS rounds only.
LONG_SECONDS, LONG_ROUNDS = 30.0, 3

RESULTS = Path("build/stress")

# What pytest returns when no test was selected.
_NOTHING_SELECTED = 5


@dataclass(frozen=True)
class Result:
    """Says how one test ended in one round. `failure` is the first line of what went wrong, empty if nothing did."""

    test: str
    seconds: float
    failure: str


@contextmanager
def busy() -> Iterator[None]:
    """Keeps `BURNERS` processes computing within the block."""
    burners = [subprocess.Popen([sys.executable, "-c", _BURN]) for _ in range(BURNERS)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def read_results(report: Path) -> list[Result]:
    """Reads a report in JUnit's format, as pytest writes it; tests that were skipped are left out."""
    results = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):  # noqa: S314 - written by our own pytest
        if case.find("skipped") is None:
            bad = next((element for kind in ("failure", "error") if (element := case.find(kind)) is not None), None)
            failure = "" if bad is None else (bad.get("message") or "failed").splitlines()[0]
            results.append(Result(_test_id(case), float(case.get("time", 0)), failure))
    return results


def summary(results: Sequence[Result]) -> str:
    """Returns a line for each failed test, with how often and why it failed, and a line of totals."""
    runs = Counter(result.test for result in results)
    failures: dict[str, list[str]] = defaultdict(list)
    for result in results:
        if result.failure:
            failures[result.test].append(result.failure)
    lines = [
        f"{len(messages)} of {runs[test]} failed: {test}: {messages[0]}"
        for test, messages in sorted(failures.items(), key=lambda item: -len(item[1]))
    ]
    return "\n".join([*lines, f"{len(runs)} tests, {len(results)} runs, {sum(map(len, failures.values()))} failures"])


def main(count: int, selection: list[str]) -> int:
    """Runs the selected tests in `count` rounds, prints the summary after each, and returns the exit status."""
    folder = RESULTS / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    results: list[Result] = []
    broken = False
    with busy():
        for number in range(1, count + 1):
            report = folder / f"{number}.xml"
            done = [
                test
                for test in {r.test for r in results}
                if number > LONG_ROUNDS and _longest(results, test) > LONG_SECONDS
            ]
            journal = folder / f"{number}.passed"
            journal.write_text("\n".join(done))
            options = ["-q", "-p", "tests.support.journal", f"--journal={journal}"]
            junit = ["-o", "junit_family=xunit1", f"--junitxml={report}"]
            command = [sys.executable, "-m", "pytest", *options, *junit, *selection]
            begun = time.monotonic()
            with (folder / f"{number}.log").open("w") as log:
                status = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
            if status == _NOTHING_SELECTED and done:
                break
            if not report.exists() or status not in {0, 1}:
                broken = True
                print(f"round {number}: pytest ended with {status}; see {log.name}", flush=True)
                continue
            results += read_results(report)
            print(f"round {number} of {count}, {time.monotonic() - begun:.0f} s\n{summary(results)}", flush=True)
    (folder / "summary.txt").write_text(f"{' '.join(selection)}\n{summary(results)}\n")
    return 1 if broken or any(result.failure for result in results) else 0


def _test_id(case: ElementTree.Element) -> str:
    """Joins file, class and name into a pytest id."""
    file, name = case.get("file", ""), case.get("name", "")
    module = file.removesuffix(".py").replace("/", ".")
    classes = case.get("classname", "").removeprefix(module).strip(".")
    return "::".join(filter(None, [file, *classes.split("."), name]))


def _longest(results: Sequence[Result], test: str) -> float:
    return max(result.seconds for result in results if result.test == test)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the burners end too
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
