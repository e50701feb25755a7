"""What a signal to `longboat run` or to a benchmark leaves behind: nothing."""

from __future__ import annotations

import ctypes
import json
import operator
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from longboat_runtime.agent.supervisor import descendants
from longboat_runtime.sample_files.contents import Fate
from longboat_runtime.sample_files.reading import FileRemoved, Sample, read_file, read_files
from tests.support.tiny_model import build_tiny_model
from tests.support.waiting import eventually

pytestmark = pytest.mark.extended

_SET_CHILD_SUBREAPER = 36
# Where these tests run some may be ignored (nohup, the background of a script), which a child inherits.
_HEED = ("env", "--default-signal=INT,HUP,TERM")


class Program:
    """A program in a session of its own, and whatever comes from it: orphans are handed to this process, which counts them too."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._others = descendants()
        self.output = folder / "output"
        with self.output.open("wb") as output:
            self._process = subprocess.Popen([*_HEED, *command], stdout=output, stderr=output, start_new_session=True)

    def names(self) -> list[str]:
        """Command lines of all that came from it and has not ended."""
        with suppress(ChildProcessError):
            for pid in descendants() - self._others - {self._process.pid}:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)  # an orphan that has ended is ours to reap
        lines = [Path(f"/proc/{pid}/cmdline") for pid in descendants() - self._others]
        return [text for line in lines if (text := _read(line))]

    def wait_until(self, happened: Callable[[], bool]) -> None:
        def look() -> bool:
            assert self._process.poll() is None, self.output.read_text()
            return happened()

        eventually(look)

    def maps(self) -> str:
        """What is mapped into its memory: libraries, among others."""
        return Path(f"/proc/{self._process.pid}/maps").read_text()

    def send(self, number: signal.Signals) -> int:
        """Returns the exit status."""
        self._process.send_signal(number)
        return self._process.wait()

    def end(self) -> None:
        eventually(self._kill, operator.not_)

    def _kill(self) -> set[int]:
        """Kills all processes that came from the program, and returns their ids."""
        left = descendants() - self._others
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.poll()
        self.names()
        return left


def _read(line: Path) -> str:
    try:
        return line.read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[list[str]], Program]]:
    libc = ctypes.CDLL(None)
    libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    begun: list[Program] = []

    def begin(command: list[str]) -> Program:
        begun.append(Program(command, tmp_path))
        return begun[-1]

    yield begin
    for program in begun:
        program.end()
    libc.prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An RLJob that trains until it is stopped."""
    folder = tmp_path_factory.mktemp("job")
    build_tiny_model(folder / "model", max_length=64)
    rows = [{"prompt": letter, "answer": letter} for letter in "abcdefgh"]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    # Half of the prompts teach nothing: all of their responses get the same.
    reward = "def letters(sample):\n    return sum(sample.text.encode()) % 97 if sample.prompt in 'aceg' else 0\n"
    (folder / "rewards.py").write_text(reward)
    spec = {
        "runtimeRef": {"name": "local"},
        "model": {"path": str(folder / "model"), "dtype": "Float32"},
        "dataset": {"files": {"paths": [str(folder / "train.jsonl")]}},
        "algorithm": {"name": "DAPO", "groupSize": 2},
        "rounds": {"policy": "TailBatching", "steps": 100_000, "promptsPerRound": 2},
        "rollout": {"sampling": {"maxTokens": 8}, "kvCache": "16Mi", "enforceEager": True},
        "rewards": [{"name": "letters", "function": f"{folder}/rewards.py:letters"}],
        "trainer": {"maxTokensPerBin": 256},
        "samples": {"everySteps": 1},
    }
    file = folder / "job.yaml"
    head = {"apiVersion": "longboat.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "letters"}}
    file.write_text(json.dumps({**head, "spec": spec}))
    return file


def run(job: Path, folder: Path) -> list[str]:
    return [str(Path(sys.executable).with_name("longboat")), "run", str(job), "--output", str(folder / "run")]


def waits_for_engines(program: Program) -> Callable[[], bool]:
    """Graders have loaded their function, and an engine's process is there but none serves."""

    def waits() -> bool:
        names = program.names()
        return all(any(word in name for name in names) for word in ("zygote", "ray::EngineActor"))

    return waits


def generated(folder: Path) -> list[Sample]:
    """Reads the samples that the job has written of the steps that count."""

    def read() -> list[Sample] | None:
        with suppress(FileRemoved):  # since the files were listed
            return [sample for path in read_files(folder / "run").values() for sample in read_file(path)]
        return None

    samples = eventually(read, lambda samples: samples is not None)
    assert samples is not None
    return samples


def ends(program: Program) -> None:
    """Waits until no process that came from the program is left. One that is told to end may take a moment; others stay for ever."""
    eventually(program.names, operator.not_)


# SIGHUP becomes SIGTERM, for which a run that trains stands below.
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_a_run_that_waits_for_engines_leaves_nothing(
    job: Path, tmp_path: Path, start: Callable[[list[str]], Program], number: signal.Signals
) -> None:
    program = start(run(job, tmp_path))
    program.wait_until(waits_for_engines(program))
    status = program.send(number)
    ends(program)
    assert status == {signal.SIGINT: 3, signal.SIGKILL: -signal.SIGKILL}.get(number, 143), program.output.read_text()


def test_a_run_that_trains_saves_its_step_and_what_was_generated_and_leaves_nothing(
    job: Path, tmp_path: Path, start: Callable[[list[str]], Program]
) -> None:
    program = start(run(job, tmp_path))
    program.wait_until(lambda: "\n     2 " in program.output.read_text())
    program.wait_until(lambda: {sample["fate"] for sample in generated(tmp_path)} == set(Fate))
    assert "libtorch" not in program.maps(), "the driver computes nothing"
    status = program.send(signal.SIGTERM)
    ends(program)
    assert status == 143, program.output.read_text()
    assert list(tmp_path.glob("run/incarnations/1/step-*")), "the step that it had made"
    for sample in generated(tmp_path):
        assert sample["prompt"] in "abcdefgh"
        assert sample["response"] or sample["finish_reason"] == "stop", "it may be just its end"
        assert 1 <= sample["response_tokens"] <= 8
        assert (sample["fate"] == "kept") == (sample["advantage"] is not None)
        assert sample["fate"] != "dropped" or sample["reason"] == "zero_variance"
        assert sample["fate"] != "dropped" or sample["prompt"] in "aceg" or sample["score"] == 0.0
        assert sample["versions"] == [{"version": sample["step"] - 1, "start": 0, "end": sample["response_tokens"]}]
    dropped: dict[tuple[int, ...], set[float]] = {}
    for sample in generated(tmp_path):
        if sample["fate"] == "dropped":
            dropped.setdefault((sample["epoch"], sample["row"], sample["attempt"]), set()).add(sample["score"])
    assert {len(scores) for scores in dropped.values()} == {1}, "all responses of a dropped group got the same"


GRADERS = """
import asyncio, pathlib, signal, sys
from longboat_crds.rewards import RewardSpec, default_pools
from longboat_runtime.local.graders import local_graders
from longboat_runtime.reward.client import GraderClient
from tests.support.waiting import eventually_async
folder = pathlib.Path(sys.argv[1])

async def load(socket):
    await eventually_async(socket.exists)
    await GraderClient(socket).load(RewardSpec(name="f", function="math:sqrt"), "spec.rewards[0]")

with local_graders(default_pools(), folder, folder) as sockets:
    asyncio.run(load(*sockets.values()))
    signal.pause()
"""


def test_graders_end_with_a_process_that_is_killed(tmp_path: Path, start: Callable[[list[str]], Program]) -> None:
    program = start([sys.executable, "-c", GRADERS, str(tmp_path)])
    program.wait_until(lambda: any("zygote" in name for name in program.names()))
    program.send(signal.SIGKILL)
    ends(program)


BENCHMARK = """
import pathlib, sys, bench.record, bench.run
bench.record.RESULTS = pathlib.Path(sys.argv.pop(1))
bench.run.main()
"""


def test_a_benchmark_leaves_nothing(tmp_path: Path, start: Callable[[list[str]], Program]) -> None:
    """It takes SIGTERM for Ctrl-C."""
    arguments = ["rounds", "--tasks", "drawn", "--seeds", "1", "--steps", "100000"]
    program = start([sys.executable, "-c", BENCHMARK, str(tmp_path / "results"), *arguments])
    program.wait_until(waits_for_engines(program))
    program.send(signal.SIGTERM)
    ends(program)
